//! An explanation in sentences.

use std::fmt;

use super::explanation::{BlockGroup, Explanation, MissGroup, Remedy};
use super::{MissCause, SecondaryFate};
use crate::attributes::Class;

/// The share of hits from which a cache counts as healthy.
const HEALTHY: f64 = 0.95;
/// With fewer recorded misses there is no evidence.
const EVIDENCE: u64 = 16;
/// Causes with a smaller share of the misses are left out.
const SHARE_MIN: f64 = 0.01;
/// Groups with a smaller share of a cause are left out.
const GROUP_SHARE_MIN: f64 = 0.05;
/// Blocks of a label of which at least this share was used once are a stream.
const STREAM: f64 = 0.9;

/// A name for the blocks of a group.
type NameOf<'a> = dyn Fn(&BlockGroup) -> String + 'a;

impl Explanation {
    /// Whether there is nothing to improve.
    pub fn is_healthy(&self) -> bool {
        self.hit_ratio() >= HEALTHY
    }

    /// A sentence that sums up, then the sentences of each cause, the most important first. `name`
    /// names groups of blocks.
    pub fn sentences(&self, name: &NameOf<'_>) -> Vec<Vec<String>> {
        let mut paragraphs = vec![self.summary()];
        if self.recorded >= EVIDENCE {
            let causes = self.causes.iter().filter(|group| group.share >= SHARE_MIN);
            paragraphs.extend(causes.map(|group| group.sentences(name)));
        }
        paragraphs
    }

    fn summary(&self) -> Vec<String> {
        let requests = self.hits + self.misses;
        let span = duration(self.span_ns);
        if requests == 0 {
            return vec![format!("Nothing was read in the last {span}.")];
        }
        let hit_ratio = percent(self.hit_ratio());
        let mut sentences = vec![match self.is_healthy() {
            true => format!(
                "The cache is healthy: {hit_ratio} of {requests} lookups in the last {span} found \
                 their block in memory."
            ),
            false if self.misses < EVIDENCE => {
                return vec![format!(
                    "There were only {requests} lookups in the last {span}, of which {} did not \
                     find their block in memory: too few to explain.",
                    self.misses
                )];
            }
            false => format!(
                "{} of {requests} lookups in the last {span} did not find their block in memory.",
                percent(1.0 - self.hit_ratio())
            ),
        }];
        if self.is_healthy() && self.recorded < EVIDENCE {
            return sentences;
        }
        if self.recorded < EVIDENCE {
            sentences.push(format!(
                "Only {} of these misses were recorded: too few to explain them.",
                self.recorded
            ));
        } else if self.one_in > 1 {
            sentences.push(format!("One block in {} is recorded.", self.one_in));
        }
        sentences
    }
}

impl MissGroup {
    fn sentences(&self, name: &NameOf<'_>) -> Vec<String> {
        let mut sentences = vec![format!(
            "{} of the misses ({} of waiting): {} {}{}.",
            percent(self.share),
            duration(self.waited_ns),
            if self.class == Class::Metadata { "metadata" } else { "data" },
            self.cause_text(),
            self.secondary_text(),
        )];
        sentences.push(format!("Missed: {}.", listed(&self.blocks, name)));
        if matches!(self.cause, MissCause::Evicted | MissCause::MemoryPressure) {
            sentences.push(self.eviction_text(name));
        }
        sentences.extend(self.remedies.iter().map(|remedy| self.remedy_text(remedy, name)));
        if self.remedies.is_empty() {
            sentences.extend(self.no_remedy_text().map(str::to_owned));
        }
        sentences
    }

    fn cause_text(&self) -> &'static str {
        match self.cause {
            MissCause::Evicted => "that was evicted because the cache was full",
            MissCause::MemoryPressure => "that was evicted because the cache had to shrink",
            MissCause::NoCapacity => {
                "that was not cached because blocks in use or unwritten filled the memory"
            }
            MissCause::TooHeavy => "that was not cached because a block is larger than the cache",
            MissCause::ByOwner => "that is not cached by configuration",
            MissCause::Invalidated => "that was removed or replaced",
            MissCause::Expired => "that had expired",
            MissCause::Flushed => "that was flushed or closed",
            MissCause::NeverSeen => "that was read for the first time, or after very long",
            MissCause::Filling => "that was read for the first time while the cache filled up",
        }
    }

    fn secondary_text(&self) -> &'static str {
        match self.secondary {
            SecondaryFate::Absent => "",
            SecondaryFate::Served => ", and L2 had it",
            SecondaryFate::Dropped => ", and L2 had it but has overwritten it",
            SecondaryFate::Declined => ", and L2 had not taken it",
            SecondaryFate::Excluded => ", and L2 may not take it by configuration",
        }
    }

    fn eviction_text(&self, name: &NameOf<'_>) -> String {
        let age = duration(self.median_gone_ns);
        let list = match self.from_mfu {
            0.0..0.1 => "from MRU",
            0.1..0.9 => "from MRU and MFU",
            _ => "from MFU",
        };
        let Some(first) = self.evictors.first() else {
            return format!("It was evicted {list}, {age} before at the median.");
        };
        let stream = match first.used_once >= STREAM {
            true => format!(
                ", a stream: {} of its blocks were used only once",
                percent(first.used_once)
            ),
            false => String::new(),
        };
        let by = listed(&self.evictors, name);
        format!(
            "It was evicted {list}, {age} before at the median, by reads or writes of {by}{stream}."
        )
    }

    fn remedy_text(&self, remedy: &Remedy, name: &NameOf<'_>) -> String {
        match *remedy {
            Remedy::MoreMemory { bytes: more, share } => format!(
                "{} more memory for blocks would have kept about {} of it.",
                bytes(more),
                percent(share)
            ),
            Remedy::FitTheLoop { bytes: loops, more, share } => {
                let what = self.blocks.first().map(name).unwrap_or_default();
                format!(
                    "A loop over {what}, of {}, does not fit: {} more memory for blocks would \
                     have kept {} of it.",
                    bytes(loops),
                    bytes(more),
                    percent(share)
                )
            }
            Remedy::LoopTooLarge { bytes: loops } => {
                let what = self.blocks.first().map(name).unwrap_or_default();
                format!(
                    "A loop over {what}, of about {}, is larger than four times the cache: only \
                     memory or an L2 of that size would keep it.",
                    bytes(loops)
                )
            }
            Remedy::AllowSecondary { misses } => {
                format!(
                    "If L2 were allowed to take it, L2 could have served {misses} of these misses."
                )
            }
            Remedy::LargerSecondary { misses, size: None } => {
                format!("A larger L2 would have served up to {misses} of these misses.")
            }
            Remedy::LargerSecondary { misses, size: Some([today, larger]) } => format!(
                "L2 is too small for it: {} instead of {} would have served about {misses} of \
                 these misses.",
                bytes(larger),
                bytes(today)
            ),
            Remedy::AllowCaching => "Allow it to be cached.".to_owned(),
            Remedy::Wait => {
                "Wait until the cache is full. A persistent L2 shortens this after a restart."
                    .to_owned()
            }
        }
    }

    fn no_remedy_text(&self) -> Option<&'static str> {
        Some(match self.cause {
            MissCause::Evicted | MissCause::MemoryPressure => {
                "Even four times the memory would have kept less than half of it."
            }
            MissCause::NoCapacity => {
                "More memory, or fewer reads and writes at a time, would help."
            }
            MissCause::TooHeavy => "Give the cache more memory, or use smaller blocks.",
            MissCause::NeverSeen => "No cache avoids first reads.",
            _ => return None,
        })
    }
}

/// Without names, owners and labels are numbers.
impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name =
            |group: &BlockGroup| format!("label {} of owner {}", group.label, group.owner.get());
        for sentences in self.sentences(&name) {
            writeln!(f, "{}", sentences.join(" "))?;
        }
        Ok(())
    }
}

fn listed(groups: &[BlockGroup], name: &NameOf<'_>) -> String {
    // A name may stand for several groups, of which not all are listed: it has no share.
    let mut named: Vec<(String, Option<f64>)> = Vec::new();
    for group in groups.iter().filter(|group| group.share >= GROUP_SHARE_MIN) {
        let text = name(group);
        match named.iter_mut().find(|(other, _)| *other == text) {
            Some((_, share)) => *share = None,
            None => named.push((text, Some(group.share))),
        }
    }
    let each = named.into_iter().map(|(name, share)| match share {
        None | Some(0.995..) => name,
        Some(share) => format!("{name} ({})", percent(share)),
    });
    let listed: Vec<String> = each.collect();
    match (groups.first(), listed.is_empty()) {
        (Some(first), true) => format!("blocks of many kinds, such as {}", name(first)),
        _ => listed.join(", "),
    }
}

fn percent(share: f64) -> String {
    let percent = share * 100.0;
    if percent > 0.0 && !(0.95..99.5).contains(&percent) && percent < 100.0 {
        return format!("{percent:.1} %");
    }
    format!("{percent:.0} %")
}

fn bytes(bytes: u64) -> String {
    let units = [(30, "GiB"), (20, "MiB"), (10, "KiB")];
    match units.into_iter().find(|(shift, _)| bytes >= 1 << shift) {
        None => format!("{bytes} bytes"),
        Some((shift, unit)) => {
            let value = bytes as f64 / (1u64 << shift) as f64;
            if value < 10.0 { format!("{value:.1} {unit}") } else { format!("{value:.0} {unit}") }
        }
    }
}

fn duration(ns: u64) -> String {
    let s = ns as f64 / 1e9;
    match s {
        0.0 => "no time".to_owned(),
        0.0..1e-3 => format!("{:.0} µs", s * 1e6),
        0.0..1.0 => format!("{:.0} ms", s * 1e3),
        0.0..10.0 => format!("{s:.1} s"),
        0.0..120.0 => format!("{s:.0} s"),
        _ => format!("{:.0} min", s / 60.0),
    }
}

#[cfg(all(test, not(forebay_model)))]
mod tests {
    use super::Explanation;

    fn summary(hits: u64, misses: u64, recorded: u64) -> Vec<String> {
        let (span_ns, one_in, capacity) = (5_000_000_000, 1, 1 << 20);
        let (missed, blocks, causes) = (recorded, Vec::new(), Vec::new());
        let explanation = Explanation {
            span_ns,
            hits,
            misses,
            recorded,
            one_in,
            capacity,
            missed,
            blocks,
            causes,
        };
        explanation.summary()
    }

    #[test]
    fn where_there_is_nothing_to_explain_one_sentence_says_so() {
        assert_eq!(summary(0, 0, 0), ["Nothing was read in the last 5.0 s."]);
        let few = "There were only 10 lookups in the last 5.0 s, of which 4 did not find their \
                   block in memory: too few to explain.";
        assert_eq!(summary(6, 4, 4), [few]);
        assert_eq!(summary(990, 10, 10).len(), 1);
        let unseen = summary(100, 100, 2);
        assert!(unseen[1].starts_with("Only 2 of these misses"), "{unseen:?}");
    }
}
