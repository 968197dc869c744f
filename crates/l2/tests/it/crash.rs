//! Crashes at random moments of random work. No read returns wrong bytes, or an old version of a
//! key that was overwritten or removed, alone or with its group. Flushed versions survive.
//!
//! The same holds on a device that reports errors for some writes and flushes, whether it performed
//! them or not.
//!
//! Each image is opened, and work continues at once, while the rebuild runs. Then that run crashes
//! too. `FOREBAY_FULL=1` checks ten times as many images; `FOREBAY_SEED` repeats a run.

use std::collections::BTreeMap;
use std::sync::Arc;

use forebay_base::rng::SmallRng;
use forebay_cache::Class;
use forebay_io::fault::{Fault, FaultDevice, Injected, Rule};
use forebay_io::record::{Event, Image, Outcome, RecordDevice, RecordOptions, Recording};
use forebay_io::{Device, MemoryDevice, MemoryOptions, Op};
use forebay_l2::{Health, L2, L2Options};

use crate::support::{Fixture, GROUP_KEYS, NumberCodec, arena, options};

const KEYS: u64 = 300;
const SECTOR_BYTES: u32 = 512;
/// A torn write damages all of a physical sector.
const PHYSICAL_BYTES: u32 = 4096;
/// Offset of the first segment.
const SEGMENTS_AT: u64 = 64 << 10;

/// A change of a key: when it began and ended, by position in the recording, and the version that
/// it left.
struct Change {
    begun: usize,
    ended: usize,
    version: Option<u64>,
}

/// The history of one open L2.
#[derive(Default)]
struct History {
    /// Versions that may have existed before.
    before: BTreeMap<u64, Vec<u64>>,
    changes: BTreeMap<u64, Vec<Change>>,
    /// The positions from which on a version of a key was durable.
    durable: Vec<(usize, u64, u64)>,
}

impl History {
    /// Versions of a key that a crash at `position` may leave.
    fn allowed(&self, key: u64, position: usize) -> Vec<u64> {
        let changes = self.changes.get(&key).map_or(&[][..], Vec::as_slice);
        let ended = changes.iter().rposition(|change| change.ended <= position);
        let mut allowed = match ended {
            Some(last) => changes[last].version.into_iter().collect(),
            None => self.before.get(&key).cloned().unwrap_or_default(),
        };
        let begun = changes[ended.map_or(0, |last| last + 1)..].iter();
        allowed.extend(begun.filter(|c| c.begun <= position).filter_map(|c| c.version));
        allowed
    }

    /// Versions that must survive a crash at `position`: flushed before, and not changed since.
    fn promised(&self, position: usize) -> BTreeMap<u64, u64> {
        let mut promised = BTreeMap::new();
        for &(at, key, version) in self.durable.iter().filter(|(at, ..)| *at <= position) {
            let changes = self.changes.get(&key).map_or(&[][..], Vec::as_slice);
            let touched =
                |c: &Change| c.begun <= position && c.ended > at && c.version != Some(version);
            if !changes.iter().any(touched) {
                promised.insert(key, version);
            }
        }
        promised
    }
}

/// The faults of all runs of a plan.
#[derive(Debug, Default)]
struct FaultTally {
    /// Faults by place and kind.
    injected: BTreeMap<(&'static str, &'static str), u64>,
    /// Blocks reinserted between the first failed write of a run and its last one.
    reinserted: u64,
}

impl FaultTally {
    fn add(&mut self, plan: &Plan, faults: &FaultDevice) {
        for Injected { fault, op, offset, .. } in faults.injected() {
            let place = match offset.saturating_sub(SEGMENTS_AT) % plan.segment_bytes {
                _ if op == Op::Flush => "flush",
                0 => "header",
                at if at == plan.segment_bytes - 4096 => "footer",
                _ => "batch",
            };
            let kind = match fault {
                Fault::Error(_) => "error",
                Fault::ErrorAfter(_) => "error after",
                Fault::Torn { .. } => "torn",
                _ => panic!("{fault:?} has no rule"),
            };
            *self.injected.entry((place, kind)).or_default() += 1;
        }
    }

    /// Asserts that every kind of fault happened often, and that blocks were reinserted meanwhile.
    fn check(&self) {
        let count = |place, kind| self.injected.get(&(place, kind)).copied().unwrap_or(0);
        for (place, least) in [("header", 10), ("batch", 50), ("footer", 200)] {
            for kind in ["error", "error after", "torn"] {
                assert!(count(place, kind) >= least, "{kind}, {place}: {self:?}");
            }
        }
        // A flush that the user asked for must not fail, or the L2 fails.
        assert!(count("flush", "error") + count("flush", "error after") > 0, "{self:?}");
        assert!(self.reinserted >= 100, "{self:?}");
    }

    fn merge(&mut self, other: Self) {
        for (kind, count) in other.injected {
            *self.injected.entry(kind).or_default() += count;
        }
        self.reinserted += other.reinserted;
    }
}

/// A run with its recorded history.
struct Run {
    fixture: Fixture,
    recorder: Arc<RecordDevice>,
    history: History,
    /// The version in memory or on the L2, if there is one.
    now: BTreeMap<u64, u64>,
    /// Versions that are certainly in memory or were flushed, and the flushed ones alone.
    sure: BTreeMap<u64, u64>,
    spilled: BTreeMap<u64, u64>,
    next_version: u64,
    /// Whether the device fails sometimes.
    faults: bool,
    tally: FaultTally,
}

impl Run {
    fn change(&mut self, key: u64, len: Option<usize>) {
        let begun = self.recorder.position();
        let version = len.map(|_| self.next_version);
        self.next_version += 1;
        let failures = self.forget_failures();
        // Metadata is reinserted with or without hits.
        let class =
            if self.faults && key.is_multiple_of(2) { Class::Metadata } else { Class::Data };
        match (version, len) {
            (Some(version), Some(len)) => self.fixture.insert_as(key, version, len, class),
            _ => drop(self.fixture.cache.remove(&key)),
        }
        // A key that could not be forgotten may return, and the L2 reports it.
        let ended = match self.forget_failures() == failures {
            true => self.recorder.position(),
            false => usize::MAX,
        };
        self.history.changes.entry(key).or_default().push(Change { begun, ended, version });
        self.spilled.remove(&key);
        match version {
            Some(version) => {
                self.now.insert(key, version);
                self.sure.insert(key, version);
            }
            None => {
                self.now.remove(&key);
                self.sure.remove(&key);
            }
        }
    }

    /// Removes all keys of a group at once.
    fn forget_group(&mut self, group: u64) {
        let begun = self.recorder.position();
        let ended = match self.fixture.forget_group(group) {
            Ok(()) => self.recorder.position(),
            Err(error) => {
                assert!(self.faults, "{error}");
                usize::MAX
            }
        };
        for key in group * GROUP_KEYS..(group + 1) * GROUP_KEYS {
            let change = Change { begun, ended, version: None };
            self.history.changes.entry(key).or_default().push(change);
            self.spilled.remove(&key);
            self.now.remove(&key);
            self.sure.remove(&key);
        }
    }

    fn forget_failures(&self) -> u64 {
        self.fixture.l2.stats().count("forget_failures")
    }

    fn flush(&mut self, all: bool) {
        if all {
            self.offer();
        }
        let offered = self.fixture.l2.stats();
        match self.fixture.l2.flush() {
            Err(_) if self.faults => return,
            flushed => flushed.unwrap(),
        }
        assert_eq!(offered.count("refused"), self.fixture.l2.stats().count("refused"));
        if all && !self.faults {
            let at = self.recorder.position();
            for (key, version) in &self.sure {
                self.history.durable.push((at, *key, *version));
            }
            self.spilled = self.sure.clone();
        }
    }

    fn offer(&self) {
        self.fixture.cache.offer_all(64, |candidates| {
            forebay_cache::SecondaryCache::offer(&*self.fixture.l2, candidates);
        });
    }

    /// One step of work.
    fn step(&mut self, rng: &mut SmallRng, longest: u64) {
        // Some keys stay unchanged long enough to be reinserted and evicted.
        let often = self.faults && rng.below(4) > 0;
        let key = rng.below(if often { KEYS / 10 } else { KEYS });
        match rng.below(100) {
            0..40 => self.change(key, Some(rng.below(longest) as usize)),
            40..50 if !self.faults => self.change(key, Some(rng.below(longest) as usize)),
            40..65 => self.change(key, None),
            65..80 => self.offer(),
            80..84 => self.flush(false),
            84..86 => {
                self.flush(true);
                self.fixture.cache.clear();
            }
            86..88 => self.drop_memory(),
            88 => self.forget_group(key / GROUP_KEYS),
            _ => {
                if let Some(value) = self.fixture.get(key) {
                    let now = self.now.get(&key).copied();
                    let before = || self.history.before.get(&key).cloned().unwrap_or_default();
                    let unknown = now.is_none() && !self.history.changes.contains_key(&key);
                    assert!(
                        now == Some(value.version) || unknown && before().contains(&value.version),
                        "{key} has version {}, not {now:?}",
                        value.version
                    );
                }
            }
        }
    }

    /// Values only in memory are lost. The L2 may have them or not.
    fn drop_memory(&mut self) {
        self.fixture.cache.clear();
        self.sure = self.spilled.clone();
    }
}

/// A device that holds an image, durably.
pub(crate) fn memory(image: &Image) -> Arc<dyn Device> {
    let options = MemoryOptions {
        sector_bytes: image.sector_bytes(),
        physical_bytes: PHYSICAL_BYTES,
        ..MemoryOptions::default()
    };
    let device = MemoryDevice::new("crashed", image.size_bytes(), &options).unwrap();
    image.write_to(&device, &arena()).unwrap();
    Arc::new(device)
}

/// The parameters of a run.
#[derive(Clone, Copy, Debug)]
struct Plan {
    seed: u64,
    device_bytes: u64,
    segment_bytes: u64,
    longest: u64,
    steps: u64,
    images: u64,
    /// Whether the ring wraps, so that flushed versions may be evicted.
    round: bool,
    /// Whether writes and flushes of the device fail sometimes.
    faults: bool,
}

/// The outcome of a plan.
struct Executed {
    /// Versions that had to survive, and those that were found.
    promised: usize,
    found: usize,
    tally: FaultTally,
}

impl Plan {
    fn options(&self) -> L2Options {
        let options = L2Options { segment_bytes: Some(self.segment_bytes), ..options() };
        options.tunables.set("batch_bytes", "64K").unwrap();
        options
    }

    fn execute(&self) -> Executed {
        println!("{self:?}");
        let mut rng = SmallRng::from_seed(self.seed);
        let zero = Image::zero(self.device_bytes, SECTOR_BYTES);
        let first = self.run_history(&mut rng, &zero, History::default(), 1);
        let recording = first.recorder.recording();
        assert!(recording.is_complete(), "the recording is too short");
        self.check_failed_writes(&recording);
        let mut executed = Executed { promised: 0, found: 0, tally: first.tally };
        for image in 0..self.images {
            let position = rng.below(recording.len() as u64 + 1) as usize;
            let crashed = recording.at(position).sampled(&mut rng);
            println!("image {image}, at {position} of {}", recording.len());
            let kept = self.check(&crashed, &first.history, position);
            let Some(kept) = kept else { continue };
            executed.promised += kept.0;
            executed.found += kept.1;
            // A second run starts on the image and crashes too.
            let allowed =
                (0..KEYS).map(|key| (key, first.history.allowed(key, position))).collect();
            let history = History { before: allowed, ..History::default() };
            let second = self.run_history(&mut rng, &crashed, history, first.next_version);
            let again = second.recorder.recording();
            let position = rng.below(again.len() as u64 + 1) as usize;
            println!("  then at {position} of {}", again.len());
            let crashed = again.at(position).sampled(&mut rng);
            self.check(&crashed, &second.history, position);
            executed.tally.merge(second.tally);
        }
        executed
    }

    /// A run on an image. The first run creates the L2.
    fn run_history(
        &self,
        rng: &mut SmallRng,
        image: &Image,
        history: History,
        next_version: u64,
    ) -> Run {
        let base = Some(image.clone());
        let fresh = history.before.is_empty();
        let options = RecordOptions { max_bytes: 1 << 30, base };
        let failing = Arc::new(FaultDevice::new(memory(image), rng.next_u64()));
        let recorder = Arc::new(RecordDevice::new(failing.clone(), options));
        let device: Arc<dyn Device> = recorder.clone();
        let fixture = match fresh {
            true => Fixture::create(&device, &self.options()),
            false => self.open(&failing, &device),
        };
        if fresh && self.faults {
            self.add_faults(&failing);
        }
        let (now, sure, spilled) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        let faults = self.faults;
        let tally = FaultTally::default();
        let mut run =
            Run { fixture, recorder, history, now, sure, spilled, next_version, faults, tally };
        let steps = if fresh { self.steps } else { self.steps / 20 };
        if !fresh {
            // At once, while the rebuild may still run.
            (0..20).for_each(|_| run.change(rng.below(KEYS), None));
            run.forget_group(rng.below(KEYS) / GROUP_KEYS);
            assert!(run.fixture.l2.wait_rebuilt() || self.faults);
        }
        // Failed writes so far, and blocks reinserted before the first of them.
        let (mut errors, mut reinserted) = (0, 0);
        for _ in 0..steps {
            if run.fixture.l2.health() == Health::Healthy {
                run.step(rng, self.longest);
            }
            if self.faults {
                let stats = run.fixture.l2.stats();
                let failed = stats.count("write_errors") > errors;
                if errors == 0 {
                    reinserted = stats.count("reinserted");
                }
                if failed {
                    errors = stats.count("write_errors");
                    run.tally.reinserted = stats.count("reinserted") - reinserted;
                }
            }
        }
        run.tally.add(self, &failing);
        let stats = run.fixture.l2.stats();
        assert!(self.faults || stats.count("forget_failures") == 0);
        // After a crash a log block may be there without all of its blocks.
        assert!(!fresh || self.faults || stats.count("load_corrupt") == 0, "{:?}", stats.short());
        if fresh && self.round && stats.health == Health::Healthy {
            assert!(stats.count("evicted") > 0, "the ring came round: {:?}", stats.short());
        }
        // Only the recording is needed from here on.
        run.fixture.l2.close();
        run
    }

    /// Some headers and flushes, most footers, and a batch of most third segments report an error.
    /// With more errors the L2 would fail. Each operation is performed, performed in part, or not
    /// performed.
    fn add_faults(&self, faults: &FaultDevice) {
        let segments = (self.device_bytes - SEGMENTS_AT - 4096) / self.segment_bytes;
        for nth in 0..segments {
            let begin = SEGMENTS_AT + nth * self.segment_bytes;
            let batches = if nth % 3 == 0 { 0.06 } else { 0.0 };
            let (header, footer) = (begin + 4096, begin + self.segment_bytes - 4096);
            for (range, probability) in
                [(begin..header, 0.02), (header..footer, batches), (footer..footer + 4096, 0.6)]
            {
                for fault in [Fault::Error(5), Fault::ErrorAfter(5), Fault::Torn { reported: true }]
                {
                    let rule = Rule::new(fault).on(Op::Write).within(range.clone());
                    faults.add(rule.with_probability(probability));
                }
            }
        }
        for fault in [Fault::Error(5), Fault::ErrorAfter(5)] {
            faults.add(Rule::new(fault).on(Op::Flush).with_probability(0.0002));
        }
    }

    /// Opens the L2. The device may fail meanwhile, which is an error if a label is to be written.
    fn open(&self, failing: &FaultDevice, device: &Arc<dyn Device>) -> Fixture {
        if self.faults {
            self.add_faults(failing);
        }
        let open = || L2::open(device.clone(), Arc::new(NumberCodec), &self.options());
        Fixture::over(open().unwrap_or_else(|error| {
            assert!(self.faults, "{error}");
            failing.clear();
            open().unwrap()
        }))
    }

    /// A failed write may arrive later. So nothing else may be written to its place until another
    /// header reuses the segment.
    fn check_failed_writes(&self, recording: &Recording) {
        let events = recording.events();
        let mut failed = 0;
        for event in events {
            let Event::Ended { begun, outcome: Outcome::Failed } = event else { continue };
            let Event::Write { offset, bytes } = &events[*begun] else { continue };
            if *offset < SEGMENTS_AT {
                continue;
            }
            failed += 1;
            let segment = (offset - SEGMENTS_AT) / self.segment_bytes;
            let begin = SEGMENTS_AT + segment * self.segment_bytes;
            let header = events[..=*begun].iter().rev().find_map(|event| match event {
                Event::Write { offset, bytes } if *offset == begin => Some(bytes),
                _ => None,
            });
            for later in &events[begun + 1..] {
                let Event::Write { offset: at, bytes: new } = later else { continue };
                if *at == begin && Some(new) != header {
                    break;
                }
                let apart = at + new.len() as u64 <= *offset || offset + bytes.len() as u64 <= *at;
                assert!(apart || at == offset && new == bytes, "{offset} is written again");
            }
        }
        assert!(!self.faults || failed > 0, "no write has failed");
    }

    /// Opens an image and checks every key. Returns the numbers of promised and found versions, or
    /// `None` if there is no L2 yet.
    fn check(&self, image: &Image, history: &History, position: usize) -> Option<(usize, usize)> {
        let device = memory(image);
        let l2 = match L2::open(device, Arc::new(NumberCodec), &self.options()) {
            Ok(l2) => l2,
            Err(error) => {
                // The label is made durable before anything else. It is voided if a key cannot be
                // forgotten.
                assert!(
                    self.faults
                        || history.before.is_empty() && history.promised(position).is_empty(),
                    "{error}"
                );
                return None;
            }
        };
        let fixture = Fixture::over(l2);
        let check_key = |key| {
            let found = fixture.get(key).map(|value| value.version);
            let allowed = history.allowed(key, position);
            assert!(
                found.is_none_or(|version| allowed.contains(&version)),
                "{key} has version {found:?}, of {allowed:?}"
            );
            found
        };
        // During the rebuild and after it.
        (0..KEYS).for_each(|key| _ = check_key(key));
        assert!(fixture.l2.wait_rebuilt());
        assert_eq!(fixture.l2.rebuild().damaged, 0, "a crash damages nothing");
        fixture.cache.clear();
        let promised = history.promised(position);
        let found =
            promised.iter().filter(|(key, version)| check_key(**key) == Some(**version)).count();
        if !self.round {
            let enough = promised.len() * 99 / 100;
            assert!(found >= enough, "{found} of {} are there", promised.len());
        }
        (0..KEYS).for_each(|key| _ = check_key(key));
        fixture.close();
        Some((promised.len(), found))
    }
}

fn seeds(few: u64) -> Vec<u64> {
    let first = forebay_base::testing::seed(1);
    let count = if forebay_base::testing::full() { few * 10 } else { few };
    (0..count).map(|nth| first.wrapping_add(nth)).collect()
}

#[test]
fn flushed_versions_survive_a_crash_and_old_versions_do_not() {
    let (mut promised, mut found) = (0, 0);
    for seed in seeds(2) {
        let (device_bytes, segment_bytes) = (96 << 20, 512 << 10);
        let (longest, steps, images, round) = (3000, 3000, 25, false);
        let faults = false;
        let plan =
            Plan { seed, device_bytes, segment_bytes, longest, steps, images, round, faults };
        let executed = plan.execute();
        promised += executed.promised;
        found += executed.found;
    }
    println!("{found} of {promised} that were promised are there");
    assert!(promised > 1000, "only {promised} were promised");
}

#[test]
fn old_versions_do_not_survive_a_crash_of_a_wrapped_ring() {
    for seed in seeds(2) {
        let (device_bytes, segment_bytes) = (4 << 20, 64 << 10);
        let (longest, steps, images, round) = (2000, 6000, 25, true);
        let faults = false;
        let plan =
            Plan { seed, device_bytes, segment_bytes, longest, steps, images, round, faults };
        plan.execute();
    }
}

#[test]
fn old_versions_do_not_survive_a_crash_of_a_faulty_device() {
    let mut tally = FaultTally::default();
    for seed in seeds(4) {
        let (device_bytes, segment_bytes) = (4 << 20, 64 << 10);
        let (longest, steps, images, round, faults) = (8000, 6000, 25, true, true);
        let plan =
            Plan { seed, device_bytes, segment_bytes, longest, steps, images, round, faults };
        tally.merge(plan.execute().tally);
    }
    println!("{tally:?}");
    tally.check();
}
