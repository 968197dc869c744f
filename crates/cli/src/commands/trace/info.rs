//! `forebay trace info`.

use std::collections::{HashMap, HashSet};
use std::path::Path;

use forebay_pool::BlockLabel;
use forebay_pool::trace::{TraceItem, TraceOutcome, TraceRecord};
use serde::Serialize;

use super::{open, unreadable};
use crate::error::Result;
use crate::{output, units};

/// Objects that are shown.
const OBJECTS: usize = 10;

/// Accesses that somebody asked for.
#[derive(Clone, Copy, Default, Serialize)]
struct Accesses {
    accesses: u64,
    hits: u64,
    bytes: u64,
}

#[derive(Serialize)]
struct Group {
    name: String,
    #[serde(flatten)]
    accesses: Accesses,
    hit_ratio: f64,
}

#[derive(Serialize)]
struct Info {
    pool: String,
    start_unix_us: u64,
    duration_us: u64,
    /// False if the end is missing: the recording failed, or the file was cut.
    complete: bool,
    dropped: u64,
    /// Blocks that read-ahead began to read. They are not in the other numbers.
    read_ahead: u64,
    /// Different blocks, and their bytes.
    blocks: u64,
    block_bytes: u64,
    all: Group,
    classes: Vec<Group>,
    datasets: Vec<Group>,
    objects: Vec<Group>,
}

/// What a trace has, while it is read.
#[derive(Default)]
struct Summary {
    all: Accesses,
    by_class: [Accesses; 2],
    by_dataset: HashMap<u16, Accesses>,
    by_object: HashMap<(u16, BlockLabel), Accesses>,
    blocks: HashSet<u64>,
    block_bytes: u64,
    read_ahead: u64,
    last_us: u64,
    datasets: HashMap<u16, String>,
    paths: HashMap<(u16, u64), String>,
}

pub(super) fn run(path: &Path, json: bool) -> Result<()> {
    let info = read(path)?;
    match json {
        true => output::json(&info),
        false => {
            output::print(&text(&info));
            Ok(())
        }
    }
}

fn read(path: &Path) -> Result<Info> {
    let mut reader = open(path)?;
    let (mut summary, mut end) = (Summary::default(), None);
    while let Some(item) = reader.next_item().map_err(|error| unreadable(path, &error))? {
        match item {
            TraceItem::Record(record) => summary.add(&record),
            TraceItem::Dataset(number, guid, name) => {
                let name = if guid == 0 { "(pool)".to_owned() } else { name };
                summary.datasets.insert(number, name);
            }
            TraceItem::Path(dataset, object, path) => {
                summary.paths.insert((dataset, object), path);
            }
            TraceItem::End(totals) => end = Some(totals),
        }
    }
    let classes = ["data", "metadata"].into_iter().zip(summary.by_class);
    let by_dataset = summary.by_dataset.iter();
    let by_object = summary.by_object.iter();
    let objects = by_object.map(|((dataset, label), of)| (summary.object(*dataset, *label), *of));
    Ok(Info {
        pool: reader.header().pool.clone(),
        start_unix_us: reader.header().start_unix_us,
        duration_us: end.map_or(summary.last_us, |totals| totals.duration_us),
        complete: end.is_some(),
        dropped: end.map_or(0, |totals| totals.dropped),
        read_ahead: summary.read_ahead,
        blocks: summary.blocks.len() as u64,
        block_bytes: summary.block_bytes,
        all: group("all".to_owned(), summary.all),
        classes: classes.map(|(name, of)| group(name.to_owned(), of)).collect(),
        datasets: top(by_dataset.map(|(number, of)| (summary.dataset(*number), *of)), usize::MAX),
        objects: top(objects, OBJECTS),
    })
}

impl Summary {
    fn add(&mut self, record: &TraceRecord) {
        self.last_us = self.last_us.max(record.time_us);
        if record.outcome == TraceOutcome::ReadAhead {
            self.read_ahead += 1;
            return;
        }
        let groups = [
            &mut self.all,
            &mut self.by_class[usize::from(record.is_metadata)],
            self.by_dataset.entry(record.dataset).or_default(),
            self.by_object.entry((record.dataset, record.label)).or_default(),
        ];
        for group in groups {
            group.accesses += 1;
            group.hits += u64::from(record.outcome == TraceOutcome::Hit);
            group.bytes = group.bytes.saturating_add(u64::from(record.bytes));
        }
        if self.blocks.insert(record.key()) {
            self.block_bytes = self.block_bytes.saturating_add(u64::from(record.bytes));
        }
    }

    fn dataset(&self, number: u16) -> String {
        self.datasets.get(&number).cloned().unwrap_or_else(|| format!("dataset {number}"))
    }

    fn object(&self, dataset: u16, label: BlockLabel) -> String {
        let of = self.dataset(dataset);
        match label {
            BlockLabel::Object(number) => match self.paths.get(&(dataset, number)) {
                Some(path) => format!("{of}: {path}"),
                None => format!("{of}: object {number}"),
            },
            BlockLabel::Indirect => format!("{of}: indirect blocks"),
            BlockLabel::Dnodes => format!("{of}: dnodes"),
            BlockLabel::Unknown => format!("{of}: other blocks"),
        }
    }
}

fn group(name: String, accesses: Accesses) -> Group {
    let hit_ratio = match accesses.accesses {
        0 => 0.0,
        all => accesses.hits as f64 / all as f64,
    };
    Group { name, accesses, hit_ratio }
}

/// The groups with most accesses.
fn top(groups: impl Iterator<Item = (String, Accesses)>, most: usize) -> Vec<Group> {
    let mut groups: Vec<Group> = groups.map(|(name, of)| group(name, of)).collect();
    groups.sort_by(|one, other| {
        other.accesses.accesses.cmp(&one.accesses.accesses).then_with(|| one.name.cmp(&other.name))
    });
    groups.truncate(most);
    groups
}

fn text(info: &Info) -> String {
    let mut text = format!(
        "pool {}: {} accesses to {} blocks ({}) in {:.1} s, {} read ahead\n",
        info.pool,
        info.all.accesses.accesses,
        info.blocks,
        units::bytes(info.block_bytes),
        info.duration_us as f64 / 1e6,
        info.read_ahead
    );
    if info.dropped > 0 {
        text.push_str(&format!("{} more came too fast and are missing\n", info.dropped));
    }
    if !info.complete {
        text.push_str(
            "the end of the trace is missing: the recording failed, or the file was cut\n",
        );
    }
    text.push_str(&format!("\n{:>12} {:>9} {:>7}\n", "accesses", "bytes", "hits"));
    let tables = [std::slice::from_ref(&info.all), &info.classes, &info.datasets, &info.objects];
    for groups in tables {
        for Group { name, accesses, hit_ratio } in groups {
            text.push_str(&format!(
                "{:>12} {:>9} {:>5.1} %  {name}\n",
                accesses.accesses,
                units::bytes(accesses.bytes),
                hit_ratio * 100.0
            ));
        }
        text.push('\n');
    }
    text.trim_end().to_owned() + "\n"
}
