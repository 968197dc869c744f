//! Crashes at any point, one after another.

use forebay_base::rng::SmallRng;
use forebay_base::sync::Arc;
use forebay_base::sync::atomic::Ordering;
use forebay_io::record::{Image, RecordDevice, RecordOptions};
use proptest::prelude::*;

use super::*;

/// What happened, in the order in which it did, with where the device was by then.
#[derive(Default)]
struct History {
    /// Ordered changes: txg, and which.
    ordered: Vec<ReplayedEntry>,
    /// Durable roots: position, and what they say.
    roots: Vec<(usize, LogRootPhys)>,
    /// Commits that were durable: position, ordered changes before it, object and its version by
    /// then.
    acked: Vec<(usize, usize, Option<(u64, u8, u64)>)>,
}

/// A pool that has nothing but a log.
pub(super) struct World {
    record: Arc<RecordDevice>,
    log: IntentLog,
    versions: Versions,
    history: History,
    open: u64,
    syncing: Option<(u64, LogRootPhys)>,
    /// One step in so many is one of the sync.
    sync_in: u64,
}

impl World {
    pub(super) fn new(arena: &Arc<Arena>, sync_in: u64) -> Self {
        let device = medium("log");
        let record = Arc::new(RecordDevice::new(Arc::new(device), RecordOptions::default()));
        let storage = OneDevice::new(record.clone(), arena);
        let log = create(&Arc::new(storage), &extents());
        let versions = Versions::default();
        let root = sync(&log, 1);
        let history = History { roots: vec![(0, root)], ..History::default() };
        Self { record, log, versions, history, open: 2, syncing: None, sync_in }
    }

    /// The newest root, and all that was written.
    pub(super) fn end(&self) -> (LogRootPhys, Image) {
        let (_, root) = *self.history.roots.last().expect("there was one at first");
        (root, self.record.recording().at(self.record.position()).at_most())
    }

    pub(super) fn step(&mut self, rng: &mut SmallRng) {
        let sync = rng.below(self.sync_in) == 0;
        match rng.below(16) {
            _ if sync => self.sync(rng),
            0..=7 => self.append(rng, self.open),
            8..=11 => self.write(rng, self.open),
            _ => self.commit(rng),
        }
    }

    fn sync(&mut self, rng: &mut SmallRng) {
        if let Some((txg, root)) = self.syncing.take() {
            self.history.roots.push((self.record.position(), root));
            return self.log.synced(txg);
        }
        // Quiesce: the next txg opens, then the last holds of this one end.
        let txg = self.open;
        self.open += 1;
        for _ in 0..rng.below(4) {
            let of = if rng.below(2) == 0 { txg } else { self.open };
            self.append(rng, of);
            if rng.below(3) == 0 {
                self.write(rng, of);
            }
            if rng.below(3) == 0 {
                self.commit(rng);
            }
        }
        self.syncing = Some((txg, self.log.root_for(txg)));
    }

    fn append(&mut self, rng: &mut SmallRng, txg: u64) {
        let object = 1000 + rng.below(3);
        let name = format!("name {}", self.history.ordered.len());
        let value = vec![7; rng.below(300) as usize];
        let change = Change::ZapInsert { name: name.as_bytes(), value: &value };
        self.log.append(txg, DATASET, object, change);
        let record = LogRecord::ZapInsert { name: name.as_bytes(), value: &value };
        self.history.ordered.push(ReplayedEntry { txg, object, text: format!("{record:?}") });
    }

    fn write(&mut self, rng: &mut SmallRng, txg: u64) {
        let object = rng.below(4);
        let version = {
            let mut versions = self.versions.0.borrow_mut();
            let version = versions.entry(object).or_default();
            *version = version.wrapping_add(1);
            *version
        };
        let max = if rng.below(8) == 0 { 20_000 } else { 600 };
        let len = 1 + rng.below(max);
        // Not adjacent to anything: merging has its own test.
        let offset = u64::from(version) * 100_000;
        self.log.append(txg, DATASET, object, Change::Write { offset, len });
        self.history.ordered.push(ReplayedEntry { txg, object, text: format!("note {offset}") });
    }

    fn commit(&mut self, rng: &mut SmallRng) {
        let object = (rng.below(3) > 0).then(|| rng.below(4));
        if self.log.commit(object.map(|object| (DATASET, object)), &self.versions)
            == Committed::Durable
        {
            let acked = object.map(|object| (object, 0, 0));
            self.history.acked.push((self.record.position(), self.history.ordered.len(), acked));
        }
    }
}

impl History {
    /// Checks what a replay from `root` found, of which what had been promised before `position`
    /// must be part.
    fn check(&self, root: &LogRootPhys, position: usize, found: &[ReplayedEntry]) {
        let txg = root.txg.get();
        let is_note = |seen: &ReplayedEntry| seen.text.starts_with("note");
        // Ordered changes: a beginning of all, without those in the root.
        let names: Vec<_> = found.iter().filter(|seen| seen.text.starts_with("Zap")).collect();
        let wanted = || self.ordered.iter().filter(|seen| !is_note(seen) && seen.txg > txg);
        for (found, wanted) in names.iter().zip(wanted()) {
            assert_eq!(*found, wanted);
        }
        assert!(names.len() <= wanted().count());
        let promised = self.acked.iter().filter(|(at, ..)| *at < position);
        for (_, count, object) in promised {
            let must = &self.ordered[..*count];
            let must_names = must.iter().filter(|seen| !is_note(seen) && seen.txg > txg).count();
            assert!(names.len() >= must_names, "{} of {must_names} were replayed", names.len());
            let Some((object, ..)) = object else { continue };
            for note in must.iter().filter(|seen| is_note(seen) && seen.txg > txg) {
                let write = note.text.replace("note", "write") + "+";
                let there = found
                    .iter()
                    .filter(|seen| seen.text.starts_with(&write) && seen.object == note.object);
                if note.object == *object {
                    assert_eq!(there.count(), 1, "{write}");
                }
            }
        }
        // Nothing twice.
        let mut sorted: Vec<_> = found.iter().map(|seen| (seen.object, &seen.text)).collect();
        sorted.sort_unstable();
        let before = sorted.len();
        sorted.dedup();
        assert_eq!(before, sorted.len(), "something was replayed twice");
    }
}

fn crash_anywhere(seed: u64, steps: u64, arena: &Arc<Arena>) {
    let mut rng = SmallRng::from_seed(seed);
    let mut world = World::new(arena, [4, 10, 40][rng.below(3) as usize]);
    for _ in 0..steps {
        world.step(&mut rng);
    }
    let recording = world.record.recording();
    assert!(recording.is_complete());
    for _ in 0..6 {
        let position = rng.below(recording.len() as u64 + 1) as usize;
        let point = recording.at(position);
        let image = match rng.below(4) {
            0 => point.at_least(),
            1 => point.at_most(),
            _ => point.sampled(&mut rng),
        };
        let device = medium("image");
        image.write_to(&device, arena).unwrap();
        let storage = Arc::new(OneDevice::new(Arc::new(device), arena));
        let newest = world.history.roots.iter().rposition(|(at, _)| *at <= position).unwrap();
        let (_, root) = &world.history.roots[newest];
        let found = replay_all(&open(&storage, root), root);
        world.history.check(root, position + 1, &found);
        // The root before it would do as well: what had been promised while it was the newest is
        // there.
        if newest > 0 {
            let (until, _) = world.history.roots[newest];
            let (_, root) = &world.history.roots[newest - 1];
            let found = replay_all(&open(&storage, root), root);
            world.history.check(root, until, &found);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    #[test]
    fn a_crash_anywhere_loses_nothing_that_was_promised(seed in any::<u64>(), steps in 20u64..600) {
        crash_anywhere(seed, steps, &arena());
    }
}

/// A pool through several crashes: what its newest root holds and what replay adds must always be
/// the beginning of what was ever done.
struct Lives {
    /// Everything, in order.
    truth: Vec<String>,
    /// How many of them were promised, by position of the device.
    promised: Vec<(usize, usize)>,
    /// Durable roots of this life: position, txg, what they say, how much of the truth they hold.
    roots: Vec<(usize, u64, LogRootPhys, usize)>,
    record: Arc<RecordDevice>,
    arena: Arc<Arena>,
    log: IntentLog,
    open: u64,
    /// A txg that syncs: its root, and how much of the truth it holds.
    syncing: Option<(u64, LogRootPhys, usize)>,
    /// How much of the truth the open txg holds.
    applied: usize,
    how: LifeOptions,
}

/// What a pool's life is like.
#[derive(Clone, Copy)]
struct LifeOptions {
    /// One step in so many is one of the sync.
    sync_in: u64,
    /// Whether batches are of several blocks, all of one size.
    large: bool,
}

impl Lives {
    fn begin(arena: &Arc<Arena>, how: LifeOptions) -> Self {
        let device = medium("log");
        let record = Arc::new(RecordDevice::new(Arc::new(device), RecordOptions::default()));
        let storage = OneDevice::new(record.clone(), arena);
        let large = Extent { place: DvaPhys::new(Dva { device: 0, offset: 8192 }), bytes: 2 << 20 };
        let extents = if how.large { vec![large] } else { extents() };
        let log = create(&Arc::new(storage), &extents);
        let roots = vec![(0, 1, sync(&log, 1), 0)];
        let (truth, promised) = (Vec::new(), Vec::new());
        let arena = arena.clone();
        Self { truth, promised, roots, record, arena, log, open: 2, syncing: None, applied: 0, how }
    }

    fn quiesce_or_sync(&mut self) {
        match self.syncing.take() {
            None => {
                let txg = self.open;
                self.open += 1;
                self.syncing = Some((txg, self.log.root_for(txg), self.applied));
            }
            Some((txg, root, holds)) => {
                self.roots.push((self.record.position(), txg, root, holds));
                self.log.synced(txg);
            }
        }
    }

    fn live(&mut self, rng: &mut SmallRng, steps: u64) {
        let versions = Versions::default();
        for _ in 0..steps {
            let sync = rng.below(self.how.sync_in) == 0;
            match rng.below(8) {
                _ if sync => self.quiesce_or_sync(),
                0..=4 => {
                    let name = format!("{:020}", rng.next_u64());
                    let bytes = if self.how.large { 100_000 } else { rng.below(5000) };
                    let value = vec![7; bytes as usize];
                    let change = Change::ZapInsert { name: name.as_bytes(), value: &value };
                    self.log.append(self.open, DATASET, 1, change);
                    self.truth.push(name);
                    self.applied = self.truth.len();
                }
                _ => {
                    if self.log.commit(None, &versions) == Committed::Durable {
                        self.promised.push((self.record.position(), self.truth.len()));
                    }
                }
            }
        }
    }

    /// The same pool after a crash somewhere in this life, and as much of its replay as there was
    /// time for.
    fn crash(self, rng: &mut SmallRng) -> Self {
        let recording = self.record.recording();
        let position = rng.below(recording.len() as u64 + 1) as usize;
        let image = recording.at(position).sampled(rng);
        let newest = self.roots.iter().rfind(|(at, ..)| *at <= position);
        let (_, txg, root, holds) = *newest.expect("a life begins with a root");
        let promised = self.promised.iter().filter(|(at, _)| *at <= position);
        let promised = promised.map(|(_, count)| *count).max().unwrap_or(0);

        let device = medium("life");
        image.write_to(&device, &self.arena).unwrap();
        let options = RecordOptions { base: Some(image), ..RecordOptions::default() };
        let record = Arc::new(RecordDevice::new(Arc::new(device), options));
        let storage = Arc::new(OneDevice::new(record.clone(), &self.arena));
        let log = open(&storage, &root);
        // The root's txg; the log's root names an older one while a replay goes on.
        log.synced.store(txg, Ordering::SeqCst);
        let mut next = Self {
            truth: self.truth,
            promised: vec![(0, promised.max(holds))],
            roots: vec![(0, txg, root, holds)],
            record,
            arena: self.arena,
            log,
            open: txg + 1,
            syncing: None,
            applied: holds,
            how: self.how,
        };
        let mut found = Vec::new();
        let log = open_again(&next, &root);
        let mut replay = log.replay(&root);
        while replay.next_batch().unwrap() {
            while let Some(entry) = replay.next().unwrap() {
                let LogRecord::ZapInsert { name, .. } = entry.record else { panic!("{entry:?}") };
                found.push(String::from_utf8(name.to_vec()).unwrap());
            }
        }
        assert_eq!(next.truth[holds..][..found.len()], found, "from the root of txg {txg}");
        let length = holds + found.len();
        assert!(length >= promised, "{length} of {promised}");
        next.truth.truncate(length);
        next.replay(rng, &root);
        next
    }

    fn replay(&mut self, rng: &mut SmallRng, root: &LogRootPhys) {
        let stops_after = rng.below(3 * (self.truth.len() as u64 + 1));
        let mut synced_roots = Vec::new();
        let mut count = 0;
        {
            let mut replay = self.log.replay(root);
            'all: loop {
                if count == stops_after {
                    break;
                }
                while replay.next().unwrap().is_none() {
                    if !replay.next_batch().unwrap() {
                        break 'all;
                    }
                }
                count += 1;
                self.log.applied(self.open);
                self.applied += 1;
                if rng.below(4) == 0 {
                    // As `quiesce_or_sync`, which cannot be called while the log is lent.
                    match self.syncing.take() {
                        None => {
                            let txg = self.open;
                            self.open += 1;
                            self.syncing = Some((txg, self.log.root_for(txg), self.applied));
                        }
                        Some((txg, root, holds)) => {
                            synced_roots.push((self.record.position(), txg, root, holds));
                            self.log.synced(txg);
                        }
                    }
                }
            }
        }
        self.roots.extend(synced_roots);
        if count == stops_after {
            // The crash comes before the replay's end.
            return;
        }
        assert_eq!(self.applied, self.truth.len());
        let steps = rng.below(200);
        self.live(rng, steps);
    }
}

fn open_again(lives: &Lives, root: &LogRootPhys) -> IntentLog {
    let storage = OneDevice::new(lives.record.clone(), &lives.arena);
    open(&Arc::new(storage), root)
}

fn many_lives(seed: u64, arena: &Arc<Arena>) {
    let mut rng = SmallRng::from_seed(seed);
    let sync_in = [4, 10, 40][rng.below(3) as usize];
    let how = LifeOptions { sync_in, large: rng.below(2) == 0 };
    let mut lives = Lives::begin(arena, how);
    let steps = rng.below(200);
    lives.live(&mut rng, steps);
    for _ in 0..6 {
        lives = lives.crash(&mut rng);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, ..ProptestConfig::default() })]

    #[test]
    fn many_crashes_in_a_row_lose_nothing_that_was_promised(seed in any::<u64>()) {
        many_lives(seed, &arena());
    }
}
