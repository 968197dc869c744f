//! Explains the misses of the block cache, with the names of files, directories and datasets.
//!
//! Names are looked up only here, for the few groups that an explanation lists. The cache records
//! numbers. The page of the metrics server gets names of datasets only: others may read it, and a
//! look at directories may wait for a device.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use forebay_cache::{BlockGroup, Class, Explanation, MissGroup, OwnerId, Remedy};
use forebay_fs::FileKind;
use forebay_pool::{BlockLabel, Dataset};

use super::{Daemon, ImportedPool};
use crate::control::messages::{ExplainReport, ExplainedBlocks, ExplainedCause, ExplainedRemedy};
use crate::control::{ExplainScope, messages};
use crate::error::{Failure, Result};

/// Explains the misses of a scope.
///
/// # Errors
/// If the scope names a pool or dataset that is not open, or the recorder is closed.
pub(super) fn explain(daemon: &Daemon, scope: &ExplainScope) -> Result<ExplainReport> {
    let wanted = Wanted::of(daemon, scope)?;
    let cache = daemon.cache.cache();
    let since = Duration::from_secs(scope.since_s);
    let explanation = cache.explain_where(since, |owner, label| wanted.includes(owner, label));
    let explanation = explanation
        .ok_or_else(|| Failure::new("the flight recorder is closed; restart the daemon"))?;
    Ok(report(&explanation, &Names::of(daemon, &explanation)))
}

/// Explains all misses of the last `since`, with names of datasets and no others. Waits for no
/// device. `None` if the recorder is closed.
pub(super) fn without_paths(daemon: &Daemon, since: Duration) -> Option<ExplainReport> {
    let explanation = daemon.cache.cache().explain(since)?;
    let mut names = Names { without_paths: true, ..Names::default() };
    names.add_owners(daemon, &explanation);
    Some(report(&explanation, &names))
}

/// The name of an owner of blocks: a dataset, or a pool for its own.
pub(super) fn owner_name(daemon: &Daemon, owner: OwnerId) -> String {
    for imported in daemon.pools() {
        let pool = &imported.pool();
        if pool.block_owner() == owner {
            return format!("pool {}", pool.name());
        }
        if let Some(dataset) = pool.dataset_of_blocks(owner) {
            return format!("{}/{}", pool.name(), dataset.name());
        }
    }
    "a closed dataset".to_owned()
}

/// The blocks to explain.
enum Wanted {
    All,
    /// Those of a pool and its datasets, with the answers so far.
    Pool(Arc<ImportedPool>, RefCell<HashMap<OwnerId, bool>>),
    Owner(OwnerId),
    Object(OwnerId, u64),
}

impl Wanted {
    fn of(daemon: &Daemon, scope: &ExplainScope) -> Result<Self> {
        let Some(guid) = scope.pool else { return Ok(Self::All) };
        let imported = daemon.pool(guid)?;
        let pool = &imported.pool();
        Ok(match (&scope.dataset, scope.inode) {
            (None, _) => Self::Pool(imported, RefCell::default()),
            (Some(name), None) => Self::Owner(pool.dataset(name)?.block_owner()),
            (Some(name), Some(inode)) => {
                let dataset = pool.dataset(name)?;
                // Numbers of inodes begin with 2, those of objects with 0.
                Self::Object(dataset.block_owner(), inode.saturating_sub(2))
            }
        })
    }

    fn includes(&self, owner: OwnerId, label: u64) -> bool {
        match self {
            Self::All => true,
            Self::Pool(imported, known) => *known.borrow_mut().entry(owner).or_insert_with(|| {
                let pool = &imported.pool();
                // A dataset that has blocks in the cache is open.
                pool.block_owner() == owner || pool.dataset_of_blocks(owner).is_some()
            }),
            Self::Owner(of) => *of == owner,
            Self::Object(of, object) => {
                *of == owner && BlockLabel::of(label) == BlockLabel::Object(*object)
            }
        }
    }
}

/// Names of what an explanation lists.
#[derive(Default)]
struct Names {
    owners: HashMap<OwnerId, String>,
    objects: HashMap<(OwnerId, u64), (FileKind, String)>,
    without_paths: bool,
}

impl Names {
    fn of(daemon: &Daemon, explanation: &Explanation) -> Self {
        let mut names = Self::default();
        for (dataset, listed) in names.add_owners(daemon, explanation) {
            names.add_paths(&dataset, dataset.block_owner(), &listed);
        }
        names
    }

    /// Adds the names of pools and datasets. Returns the datasets, each with the numbers of its
    /// objects that are listed.
    fn add_owners(
        &mut self,
        daemon: &Daemon,
        explanation: &Explanation,
    ) -> Vec<(Dataset, Vec<u64>)> {
        let mut objects: HashMap<OwnerId, Vec<u64>> = HashMap::new();
        let of_causes = explanation.causes.iter();
        let of_causes = of_causes.flat_map(|cause| cause.blocks.iter().chain(&cause.evictors));
        for group in of_causes.chain(&explanation.blocks) {
            let listed = objects.entry(group.owner).or_default();
            if let BlockLabel::Object(number) = BlockLabel::of(group.label) {
                listed.push(number);
            }
        }
        let mut datasets = Vec::new();
        for imported in daemon.pools() {
            let pool = &imported.pool();
            self.owners.insert(pool.block_owner(), format!("pool {}", pool.name()));
            for (owner, listed) in &objects {
                if let Some(dataset) = pool.dataset_of_blocks(*owner) {
                    self.owners.insert(*owner, format!("{}/{}", pool.name(), dataset.name()));
                    datasets.push((dataset, listed.clone()));
                }
            }
        }
        datasets
    }

    fn add_paths(&mut self, dataset: &Dataset, owner: OwnerId, objects: &[u64]) {
        for (number, inode) in forebay_fs::paths(dataset, objects) {
            let path =
                inode.path.unwrap_or_else(|| format!("without a name (inode {})", inode.ino.0));
            self.objects.insert((owner, number), (inode.kind, path));
        }
    }

    fn name_of(&self, group: &BlockGroup) -> String {
        let Some(owner) = self.owners.get(&group.owner) else {
            return "blocks of a closed dataset".to_owned();
        };
        match BlockLabel::of(group.label) {
            BlockLabel::Object(_) if self.without_paths => match group.class {
                Class::Metadata => format!("directories of {owner}"),
                Class::Data => format!("files of {owner}"),
            },
            BlockLabel::Object(number) => match self.objects.get(&(group.owner, number)) {
                Some((FileKind::Directory, path)) => format!("directory {path} of {owner}"),
                Some((_, path)) => format!("file {path} of {owner}"),
                None => format!("object {number} of {owner}"),
            },
            BlockLabel::Indirect => format!("indirect blocks of {owner}"),
            BlockLabel::Dnodes => format!("inodes of {owner}"),
            BlockLabel::Unknown => format!("other blocks of {owner}"),
        }
    }
}

fn report(explanation: &Explanation, names: &Names) -> ExplainReport {
    ExplainReport {
        span_ns: explanation.span_ns,
        hits: explanation.hits,
        misses: explanation.misses,
        hit_ratio: explanation.hit_ratio(),
        healthy: explanation.is_healthy(),
        recorded: explanation.recorded,
        one_in: explanation.one_in,
        capacity_bytes: explanation.capacity,
        missed: explanation.missed,
        blocks: explanation.blocks.iter().map(|group| blocks_of(group, names)).collect(),
        causes: explanation.causes.iter().map(|cause| cause_of(cause, names)).collect(),
        sentences: explanation.sentences(&|group| names.name_of(group)),
    }
}

fn cause_of(group: &MissGroup, names: &Names) -> ExplainedCause {
    let listed = |groups: &[BlockGroup]| groups.iter().map(|one| blocks_of(one, names)).collect();
    ExplainedCause {
        cause: messages::snake_case(group.cause),
        l2: messages::snake_case(group.secondary),
        class: class_name(group.class),
        misses: group.misses,
        share: group.share,
        waited_ns: group.waited_ns,
        median_gone_ns: group.median_gone_ns,
        from_mfu: group.from_mfu,
        blocks: listed(&group.blocks),
        evictors: listed(&group.evictors),
        remedies: group.remedies.iter().map(remedy_of).collect(),
    }
}

fn class_name(class: Class) -> String {
    messages::snake_case(class)
}

fn blocks_of(group: &BlockGroup, names: &Names) -> ExplainedBlocks {
    ExplainedBlocks {
        name: names.name_of(group),
        class: class_name(group.class),
        share: group.share,
        used_once: group.used_once,
        bytes: group.bytes,
    }
}

fn remedy_of(remedy: &Remedy) -> ExplainedRemedy {
    let none = ExplainedRemedy::default();
    match *remedy {
        Remedy::MoreMemory { bytes, share } => ExplainedRemedy {
            remedy: "more_memory".to_owned(),
            more_bytes: Some(bytes),
            share: Some(share),
            ..none
        },
        Remedy::FitTheLoop { bytes, more, share } => ExplainedRemedy {
            remedy: "fit_the_loop".to_owned(),
            loop_bytes: Some(bytes),
            more_bytes: Some(more),
            share: Some(share),
            ..none
        },
        Remedy::LoopTooLarge { bytes } => {
            ExplainedRemedy { remedy: "loop_too_large".to_owned(), loop_bytes: Some(bytes), ..none }
        }
        Remedy::AllowSecondary { misses } => {
            ExplainedRemedy { remedy: "allow_l2".to_owned(), misses: Some(misses), ..none }
        }
        Remedy::LargerSecondary { misses, size } => ExplainedRemedy {
            remedy: "larger_l2".to_owned(),
            misses: Some(misses),
            l2_bytes: size.map(|[_, larger]| larger),
            ..none
        },
        Remedy::AllowCaching => ExplainedRemedy { remedy: "allow_caching".to_owned(), ..none },
        Remedy::Wait => ExplainedRemedy { remedy: "wait".to_owned(), ..none },
    }
}
