//! Sums up the recorded misses of a time: by cause, with what suffered, what evicted it, and the
//! remedy that the evidence supports.
//!
//! Locking: `recorder`, held by the caller while the evidence is copied.

use std::collections::HashMap;
use std::hash::Hash;

use super::larger_secondary::add_larger_secondary;
use super::log::Log;
use super::windows::Totals;
use super::{Miss, MissCause, RecordedBlock, SecondaryFate};
use crate::attributes::Class;
use crate::header::List;
use crate::key::OwnerId;

/// Why blocks were not in memory, over a time. Numbers of misses are estimates from a sample.
///
/// Its `Display` names owners and labels by number; [`sentences`](Self::sentences) takes names.
#[derive(Clone, Debug)]
pub struct Explanation {
    /// Length of the time in nanoseconds.
    pub span_ns: u64,
    /// Requests of all blocks that found their block in memory.
    pub hits: u64,
    /// Loads of all blocks.
    pub misses: u64,
    /// Recorded misses, of the blocks that were asked about.
    pub recorded: u64,
    /// Blocks of the cache for each one that is recorded now.
    pub one_in: u64,
    /// The weight that the cache should hold now.
    pub capacity: u64,
    /// Misses of the blocks that were asked about, of all causes, estimated.
    pub missed: u64,
    /// What was missed, most often first.
    pub blocks: Vec<BlockGroup>,
    /// The causes of misses, those first for whose loads was waited longest.
    pub causes: Vec<MissGroup>,
}

/// The misses of one cause.
#[derive(Clone, Debug)]
pub struct MissGroup {
    /// Why the blocks were not in memory.
    pub cause: MissCause,
    /// What the secondary cache did for them.
    pub secondary: SecondaryFate,
    /// Their class.
    pub class: Class,
    /// How many there were, estimated.
    pub misses: u64,
    /// Their share of the misses that were asked about.
    pub share: f64,
    /// The sum of the durations of their loads, estimated.
    pub waited_ns: u64,
    /// Half of the blocks had left longer ago than this.
    pub median_gone_ns: u64,
    /// The share of them that was evicted from MFU.
    pub from_mfu: f64,
    /// What was missed, most often first.
    pub blocks: Vec<BlockGroup>,
    /// Whose inserts evicted it, most first.
    pub evictors: Vec<BlockGroup>,
    /// What helps, and how much.
    pub remedies: Vec<Remedy>,
}

/// The blocks of one owner, label and class.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BlockGroup {
    /// The owner in their keys.
    pub owner: OwnerId,
    /// The label in their attributes.
    pub label: u64,
    /// Their class.
    pub class: Class,
    /// Their share of the misses, or of the weight that evicted, from 0 to 1.
    pub share: f64,
    /// The share of the blocks of this label that left after a single use, or after they were read
    /// ahead and used once, among those that left or were used again.
    pub used_once: f64,
    /// Weight of the blocks of this label that the recorder knows, in memory or evicted, scaled to
    /// all blocks.
    pub bytes: u64,
}

/// What would avoid misses.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Remedy {
    /// `bytes` more of memory would have kept a `share` of the missed blocks.
    MoreMemory {
        /// Bytes of blocks beyond today's capacity.
        bytes: u64,
        /// From 0 to 1.
        share: f64,
    },
    /// The first of the missed block groups is read in a loop of `bytes`, which does not fit.
    FitTheLoop {
        /// Bytes of the loop.
        bytes: u64,
        /// Bytes of blocks beyond today's capacity.
        more: u64,
        /// The share of the missed blocks that would have been kept, from 0 to 1.
        share: f64,
    },
    /// The first of the missed block groups is read in a loop of about `bytes`, more than four
    /// times the capacity.
    LoopTooLarge {
        /// Bytes of the loop.
        bytes: u64,
    },
    /// The secondary cache would have served these misses, if it were allowed to take the blocks.
    AllowSecondary {
        /// How many misses.
        misses: u64,
    },
    /// A larger secondary cache would have served some of these misses.
    LargerSecondary {
        /// How many misses: about as many if the size is known, otherwise at most as many.
        misses: u64,
        /// Today's bytes and the proposed ones. `None` if the secondary cache does not tell its
        /// size, or too few misses were simulated.
        size: Option<[u64; 2]>,
    },
    /// The owner must be allowed to cache such blocks.
    AllowCaching,
    /// The cache is filling up.
    Wait,
}

/// Groups listed of a cause.
const LISTED: usize = 5;
/// Groups listed of all causes together.
const LISTED_OF_ALL: usize = 20;
/// With fewer misses of noted blocks, nothing is known of what was forgotten.
const NOTED_MIN: usize = 8;
/// The share of the misses that the first group must have, so that they are those of a loop, and
/// of the noted blocks that must have been seen before.
const LOOP_SHARE: f64 = 0.6;
/// Shares of the missed blocks that more memory should keep: the first that is possible.
///
/// The distances are those of the blocks that were missed. In a larger cache such blocks are also
/// used more often while they are in it, for which the policy keeps them longer. So a share below
/// one is a lower bound.
const SHARES: [f64; 3] = [0.95, 0.8, 0.5];
/// Remedies of more than this many times the capacity are not proposed.
const MEMORY_MAX: u64 = 4;

/// What an explanation needs of the log.
pub(super) struct Evidence {
    start: Totals,
    misses: Vec<(f64, Miss)>,
    labels: Labels,
    one_in: u64,
    /// Bytes of the secondary cache; 0 if that is not known.
    secondary: u64,
}

impl Evidence {
    /// The evidence of the time since `from_ns`.
    pub(super) fn of(log: &Log, from_ns: u64) -> Self {
        let (start, misses) = log.windows.since(from_ns);
        let secondary = log.secondary.capacity();
        Self { start, misses, labels: Labels::of(log), one_in: log.told_scale(), secondary }
    }
}

impl Explanation {
    pub(super) fn of(
        evidence: Evidence,
        now: Totals,
        wanted: impl Fn(OwnerId, u64) -> bool,
    ) -> Self {
        let Evidence { start, mut misses, labels, one_in, secondary } = evidence;
        misses.retain(|(_, miss)| wanted(miss.block.owner, miss.block.label));
        let all: f64 = misses.iter().map(|(weight, _)| weight).sum();
        let capacity = now.target;
        let recorded = misses.len() as u64;
        let every = misses.iter().map(|(weight, miss)| (*weight, miss.block));
        let blocks = labels.ranked(every, LISTED_OF_ALL);
        let mut groups = Groups::new();
        for (weight, miss) in misses {
            groups.entry(group_of(&miss)).or_default().push((weight, miss));
        }
        let mut causes: Vec<MissGroup> = groups
            .iter()
            .map(|(key, misses)| MissGroup::of(*key, misses, all, &labels, capacity))
            .collect();
        add_larger_secondary(&mut causes, &groups, secondary);
        causes.sort_by_key(|group| {
            (std::cmp::Reverse((group.waited_ns, group.misses)), group.cause, group.secondary)
        });
        Self {
            span_ns: now.now_ns.saturating_sub(start.now_ns),
            hits: now.hits.saturating_sub(start.hits),
            misses: now.misses.saturating_sub(start.misses),
            recorded,
            one_in,
            capacity,
            missed: all.round() as u64,
            blocks,
            causes,
        }
    }

    /// Hits divided by requests; 1 without requests.
    pub fn hit_ratio(&self) -> f64 {
        let requests = self.hits + self.misses;
        if requests == 0 { 1.0 } else { self.hits as f64 / requests as f64 }
    }
}

pub(super) type GroupKey = (MissCause, SecondaryFate, Class);
/// Misses by group, each with the number that it stands for.
pub(super) type Groups = HashMap<GroupKey, Vec<(f64, Miss)>>;

fn group_of(miss: &Miss) -> GroupKey {
    let was_cached = !matches!(
        miss.cause,
        MissCause::NeverSeen
            | MissCause::Filling
            | MissCause::Invalidated
            | MissCause::Expired
            | MissCause::Flushed
    );
    let secondary = match miss.secondary {
        SecondaryFate::Served => SecondaryFate::Served,
        // It could not have had the block.
        _ if !was_cached => SecondaryFate::Absent,
        fate => fate,
    };
    (miss.cause, secondary, miss.block.class)
}

impl MissGroup {
    fn of(
        (cause, secondary, class): GroupKey,
        misses: &[(f64, Miss)],
        all: f64,
        labels: &Labels,
        capacity: u64,
    ) -> Self {
        let number: f64 = misses.iter().map(|(weight, _)| weight).sum();
        let waited: f64 = misses.iter().map(|(weight, miss)| weight * miss.waited_ns as f64).sum();
        let of_mfu = misses.iter().filter(|(_, miss)| miss.list == Some(List::Mfu));
        let of_mfu: f64 = of_mfu.map(|(weight, _)| weight).sum();
        let blocks = misses.iter().map(|(weight, miss)| (*weight, miss.block));
        let evictors = misses
            .iter()
            .filter_map(|(weight, miss)| miss.evictor.map(|evictor| (*weight, evictor)));
        let mut group = Self {
            cause,
            secondary,
            class,
            misses: number.round() as u64,
            share: number / all,
            waited_ns: waited as u64,
            median_gone_ns: Quantiles::of(misses, |miss| miss.gone_ns).at(0.5),
            // The sum of nothing is a negative zero.
            from_mfu: of_mfu.abs() / number,
            blocks: labels.ranked(blocks, LISTED),
            evictors: labels.ranked(evictors, LISTED),
            remedies: Vec::new(),
        };
        group.remedies = group.remedies(misses, capacity);
        group
    }

    fn remedies(&self, misses: &[(f64, Miss)], capacity: u64) -> Vec<Remedy> {
        let mut remedies = Vec::new();
        match self.cause {
            MissCause::Evicted | MissCause::MemoryPressure => {
                let lacking = Quantiles::of(misses, |miss| miss.lacking);
                remedies.extend(self.memory(&lacking, capacity));
            }
            MissCause::ByOwner => remedies.push(Remedy::AllowCaching),
            MissCause::Filling => remedies.push(Remedy::Wait),
            MissCause::NeverSeen => remedies.extend(self.forgotten_loop(misses, capacity)),
            _ => {}
        }
        let misses = self.misses;
        if self.secondary == SecondaryFate::Excluded {
            remedies.push(Remedy::AllowSecondary { misses });
        }
        remedies
    }

    /// A loop that is so large that its blocks are forgotten before they come back: the noted ones
    /// were seen before, and come back after the same distance.
    fn forgotten_loop(&self, misses: &[(f64, Miss)], capacity: u64) -> Option<Remedy> {
        let noted: Vec<(f64, Miss)> =
            misses.iter().filter(|(_, miss)| miss.is_noted).copied().collect();
        let sum = |misses: &[(f64, Miss)]| misses.iter().map(|(weight, _)| weight).sum::<f64>();
        let seen: Vec<(f64, Miss)> =
            noted.iter().filter(|(_, miss)| miss.lacking > 0).copied().collect();
        let lacking = Quantiles::of(&seen, |miss| miss.lacking);
        let is_known = noted.len() >= NOTED_MIN && sum(&seen) > LOOP_SHARE * sum(&noted);
        let is_loop = is_known && lacking.is_even() && self.blocks.first()?.share > LOOP_SHARE;
        let bytes = capacity + lacking.at(0.5);
        (is_loop && bytes > MEMORY_MAX * capacity).then_some(Remedy::LoopTooLarge { bytes })
    }

    /// How much more memory would have kept most of the blocks.
    fn memory(&self, lacking: &Quantiles, capacity: u64) -> Option<Remedy> {
        let most = capacity.saturating_mul(MEMORY_MAX - 1);
        let wanted = SHARES.map(|share| lacking.at(share)).into_iter().find(|more| *more <= most);
        let first = self.blocks.first()?;
        let Some(wanted) = wanted else {
            let is_loop = lacking.is_even() && first.share > LOOP_SHARE && first.used_once < 0.5;
            let bytes = first.bytes.max(capacity + lacking.at(0.5));
            return is_loop.then_some(Remedy::LoopTooLarge { bytes });
        };
        let more = round_up(wanted);
        let share = lacking.share_up_to(more);
        let does_not_fit = first.bytes > capacity / 2 && lacking.at(0.5) > capacity / 32;
        let is_loop = lacking.is_even() && first.share > LOOP_SHARE && first.used_once < 0.5;
        if is_loop && does_not_fit {
            return Some(Remedy::FitTheLoop { bytes: first.bytes, more, share });
        }
        Some(Remedy::MoreMemory { bytes: more, share })
    }
}

/// Rounds up to four binary digits.
fn round_up(bytes: u64) -> u64 {
    let step = 1 << (u64::BITS - bytes.leading_zeros()).saturating_sub(4);
    bytes.next_multiple_of(step)
}

/// Values of misses in order, with sums of the misses they stand for.
struct Quantiles {
    values: Vec<u64>,
    sums: Vec<f64>,
}

impl Quantiles {
    fn of(misses: &[(f64, Miss)], value: impl Fn(&Miss) -> u64) -> Self {
        let mut all: Vec<(u64, f64)> =
            misses.iter().map(|(weight, miss)| (value(miss), *weight)).collect();
        all.sort_by_key(|(value, _)| *value);
        let mut sum = 0.0;
        let sums = all.iter().map(|(_, weight)| {
            sum += weight;
            sum
        });
        Self { sums: sums.collect(), values: all.iter().map(|(value, _)| *value).collect() }
    }

    /// Whether most values are about the same: all blocks of a loop come back after the same
    /// distance, which is its length. With blocks that admission keeps, it is up to twice as long
    /// for some. Blocks that are read at random differ much more.
    fn is_even(&self) -> bool {
        self.at(0.9) / 2 <= self.at(0.1)
    }

    fn total(&self) -> f64 {
        self.sums.last().copied().unwrap_or(0.0)
    }

    /// The value that a share of the misses does not exceed; 0 without misses.
    fn at(&self, share: f64) -> u64 {
        let wanted = share * self.total();
        let at = self.sums.partition_point(|sum| *sum < wanted);
        self.values.get(at).or(self.values.last()).copied().unwrap_or(0)
    }

    /// The share of the misses with at most that value.
    fn share_up_to(&self, value: u64) -> f64 {
        match self.values.partition_point(|other| *other <= value) {
            0 => 0.0,
            end => self.sums[end - 1] / self.total(),
        }
    }
}

/// What the recorder knows of each label.
struct Labels(HashMap<RecordedBlock, LabelSums>);

#[derive(Default)]
struct LabelSums {
    bytes: u64,
    used_once: u64,
    reused: u64,
}

impl Labels {
    fn of(log: &Log) -> Self {
        let mut labels: HashMap<RecordedBlock, LabelSums> = HashMap::new();
        for life in log.lives() {
            let sums = labels.entry(life.block).or_default();
            sums.bytes += u64::from(life.weight) * log.told_scale();
            sums.reused += u64::from(life.reused);
            // What becomes of the others is not known yet.
            sums.used_once += u64::from(!life.reused && life.is_gone());
        }
        Self(labels)
    }

    /// At most so many groups of some blocks, the heaviest first.
    fn ranked(
        &self,
        blocks: impl Iterator<Item = (f64, RecordedBlock)>,
        most: usize,
    ) -> Vec<BlockGroup> {
        let (sums, total) = summed(blocks);
        let mut groups: Vec<BlockGroup> = sums
            .into_iter()
            .map(|(block, sum)| {
                let known = self.0.get(&block);
                let ended = known.map_or(0, |known| known.used_once + known.reused).max(1) as f64;
                BlockGroup {
                    owner: block.owner,
                    label: block.label,
                    class: block.class,
                    share: sum / total,
                    used_once: known.map_or(0.0, |known| known.used_once as f64 / ended),
                    bytes: known.map_or(0, |known| known.bytes),
                }
            })
            .collect();
        let label = |group: &BlockGroup| (group.owner, group.label);
        groups.sort_by(|a, b| b.share.total_cmp(&a.share).then(label(a).cmp(&label(b))));
        groups.truncate(most);
        groups
    }
}

fn summed<T: Eq + Hash>(items: impl Iterator<Item = (f64, T)>) -> (HashMap<T, f64>, f64) {
    let (mut sums, mut total) = (HashMap::new(), 0.0);
    for (weight, item) in items {
        *sums.entry(item).or_default() += weight;
        total += weight;
    }
    (sums, total)
}

#[cfg(all(test, not(forebay_model)))]
mod tests {
    use super::round_up;

    #[test]
    fn proposed_sizes_have_four_binary_digits() {
        let rounded = [0, 7, 16, 17, 33, 1000, (64 << 20) + 1].map(round_up);
        assert_eq!(rounded, [0, 7, 16, 18, 36, 1024, 72 << 20]);
    }
}
