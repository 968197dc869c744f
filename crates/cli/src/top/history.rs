//! What the plots show: a bounded list of points per pool, and its columns on a linear time axis.
//!
//! Time is in seconds since `forebay top` has started. Pure: callers give the time.
//!
//! # Invariants
//!
//! - A point covers the time between two samples. Time that no point covers is a gap in the plot,
//!   not zero.
//! - A column is the mean of the points that overlap it, weighted by how long they do.

use std::collections::VecDeque;

use super::summary::PoolSummary;

/// Points that are kept. At the default interval they cover an hour.
const POINTS_MAX: usize = 3600;

/// What is plotted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub(crate) enum Series {
    MemoryHits,
    L2Hits,
    Operations,
    OperationP99,
    ReadBytes,
    WriteBytes,
    DirtyBytes,
    MruBytes,
    MfuBytes,
    GhostBytes,
    L2Bytes,
    Evictions,
    DeviceReadBytes,
    DeviceWriteBytes,
    DeviceP99,
    DeviceDepth,
    CommitTime,
}

const SERIES: usize = Series::CommitTime as usize + 1;

/// The unit of a plot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unit {
    /// From 0 to 1, shown as a percentage.
    Ratio,
    PerSecond,
    Bytes,
    BytesPerSecond,
    Nanoseconds,
    Number,
}

impl Series {
    /// Title and unit of its plot.
    pub(crate) fn about(self) -> (&'static str, Unit) {
        match self {
            Self::MemoryHits => ("Blocks found in memory", Unit::Ratio),
            Self::L2Hits => ("L2 hits", Unit::Ratio),
            Self::Operations => ("Operations", Unit::PerSecond),
            Self::OperationP99 => ("Operations, p99", Unit::Nanoseconds),
            Self::ReadBytes => ("Read", Unit::BytesPerSecond),
            Self::WriteBytes => ("Written", Unit::BytesPerSecond),
            Self::DirtyBytes => ("Dirty", Unit::Bytes),
            Self::MruBytes => ("MRU", Unit::Bytes),
            Self::MfuBytes => ("MFU", Unit::Bytes),
            Self::GhostBytes => ("Ghosts", Unit::Bytes),
            Self::L2Bytes => ("L2", Unit::Bytes),
            Self::Evictions => ("Evictions", Unit::PerSecond),
            Self::DeviceReadBytes => ("Device reads", Unit::BytesPerSecond),
            Self::DeviceWriteBytes => ("Device writes", Unit::BytesPerSecond),
            Self::DeviceP99 => ("Device reads, p99", Unit::Nanoseconds),
            Self::DeviceDepth => ("Device queue depth", Unit::Number),
            Self::CommitTime => ("Newest commit took", Unit::Nanoseconds),
        }
    }
}

/// Values of all series between two samples.
#[derive(Clone, Debug)]
struct Point {
    from: f64,
    to: f64,
    /// NaN if there is no value.
    values: [f64; SERIES],
}

/// The values of a pool over time.
#[derive(Clone, Debug, Default)]
pub(crate) struct History {
    points: VecDeque<Point>,
}

impl History {
    /// Adds the figures of the interval that ended at `now`.
    pub(crate) fn push(&mut self, now: f64, summary: &PoolSummary) {
        if self.points.len() == POINTS_MAX {
            self.points.pop_front();
        }
        let mut from = now - summary.interval_seconds;
        if let Some(last) = self.points.back() {
            from = from.max(last.to);
        }
        self.points.push_back(Point { from, to: now, values: values(summary) });
    }

    /// The series from `now - span` to `now`, in columns of equal width. `None` is a gap.
    pub(crate) fn columns(
        &self,
        series: Series,
        (now, span): (f64, f64),
        width: usize,
    ) -> Vec<Option<f64>> {
        let step = span / width.max(1) as f64;
        let mut sums = vec![(0.0, 0.0); width];
        for point in self.points.iter().rev() {
            if point.to <= now - span {
                break;
            }
            let value = point.values[series as usize];
            if value.is_nan() || point.from >= now {
                continue;
            }
            let at = |time: f64| (time - (now - span)) / step;
            let (first, last) = (at(point.from).max(0.0), at(point.to).min(width as f64));
            let columns = sums.iter_mut().enumerate();
            let upto = last.ceil() as usize;
            for (column, sum) in columns.take(upto).skip(first as usize) {
                let overlap = last.min(column as f64 + 1.0) - first.max(column as f64);
                if overlap > 0.0 {
                    sum.0 += overlap * value;
                    sum.1 += overlap;
                }
            }
        }
        sums.into_iter().map(|(sum, weight)| (weight > 0.0).then(|| sum / weight)).collect()
    }

    /// The newest value of a series up to `now`.
    pub(crate) fn newest(&self, series: Series, now: f64) -> Option<f64> {
        let point = self.points.iter().rev().find(|point| point.to <= now)?;
        let value = point.values[series as usize];
        (!value.is_nan()).then_some(value)
    }
}

/// The values of an interval, by series.
fn values(summary: &PoolSummary) -> [f64; SERIES] {
    let cache = &summary.cache;
    let list = |name: &str| -> f64 {
        let states = cache.states.iter().filter(|state| state.state.ends_with(name));
        states.map(|state| state.bytes as f64).sum()
    };
    let mounts = |of: &dyn Fn(&super::summary::DatasetSummary) -> f64| -> f64 {
        summary.datasets.iter().map(of).sum()
    };
    let kinds =
        |kind: &'static str| summary.devices.iter().filter_map(move |device| device.of(kind));
    let bytes = |kind: &'static str| -> f64 { kinds(kind).map(|kind| kind.bytes.per_second).sum() };
    let longest = |times: &mut dyn Iterator<Item = u64>| -> f64 {
        times.filter(|ns| *ns > 0).max().map_or(f64::NAN, |ns| ns as f64)
    };
    let mut values = [f64::NAN; SERIES];
    let mut set = |series: Series, value: f64| values[series as usize] = value;
    set(Series::MemoryHits, cache.memory.ratio.unwrap_or(f64::NAN));
    set(Series::L2Hits, cache.l2.ratio.unwrap_or(f64::NAN));
    set(Series::Operations, mounts(&|dataset| dataset.operations_total.per_second));
    // The slowest dataset: quantiles do not add.
    set(
        Series::OperationP99,
        longest(&mut summary.datasets.iter().map(|dataset| dataset.latency.interval.p99_ns)),
    );
    set(Series::ReadBytes, mounts(&|dataset| dataset.read_bytes.per_second));
    set(Series::WriteBytes, mounts(&|dataset| dataset.write_bytes.per_second));
    set(Series::DirtyBytes, summary.txg.dirty_bytes as f64);
    set(Series::MruBytes, list("mru"));
    set(Series::MfuBytes, list("mfu"));
    set(Series::GhostBytes, list("_ghost"));
    set(Series::L2Bytes, cache.l2_bytes as f64);
    set(Series::Evictions, cache.evicted.values().map(|amount| amount.per_second).sum());
    set(Series::DeviceReadBytes, bytes("read"));
    set(Series::DeviceWriteBytes, bytes("write"));
    set(Series::DeviceP99, longest(&mut kinds("read").map(|kind| kind.latency.interval.p99_ns)));
    set(Series::DeviceDepth, summary.devices.iter().map(|device| device.mean_depth).sum());
    let newest = summary.txg.newest.first();
    set(
        Series::CommitTime,
        longest(&mut newest.map(super::summary::TxgSummary::took_ns).into_iter()),
    );
    values
}

#[cfg(test)]
mod tests {
    use super::*;

    fn summary(interval_seconds: f64, dirty_bytes: u64) -> PoolSummary {
        let mut summary = PoolSummary { interval_seconds, ..PoolSummary::default() };
        summary.txg.dirty_bytes = dirty_bytes;
        summary
    }

    #[test]
    fn time_is_linear_and_gaps_are_no_zeroes() {
        let mut history = History::default();
        history.push(1.0, &summary(1.0, 10));
        history.push(2.0, &summary(1.0, 30));
        // Nothing between 2 and 6.
        history.push(8.0, &summary(2.0, 50));
        let series = Series::DirtyBytes;
        let columns = history.columns(series, (8.0, 8.0), 8);
        let some = |value: f64| Some(value);
        assert_eq!(
            columns,
            [some(10.0), some(30.0), None, None, None, None, some(50.0), some(50.0)]
        );
        // Columns that cover several points have their mean, weighted by time.
        assert_eq!(history.columns(series, (8.0, 8.0), 2), [some(20.0), some(50.0)]);
        // What is before the span is left out.
        assert_eq!(history.columns(series, (8.0, 4.0), 2), [None, some(50.0)]);
        assert_eq!(history.newest(series, 7.0), Some(30.0));
    }

    #[test]
    fn it_is_bounded() {
        let mut history = History::default();
        for at in 0..2 * POINTS_MAX {
            history.push(at as f64, &summary(1.0, 1));
        }
        assert_eq!(history.points.len(), POINTS_MAX);
    }
}
