//! Figures of devices.

use serde::Serialize;

use super::{Amount, Durations, recorded};
use crate::control::sample::{DeviceRequests, DeviceSample, PoolSample};

/// Figures of a device.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct DeviceSummary {
    pub(crate) path: String,
    /// True for an L2 device.
    pub(crate) l2: bool,
    /// Requests in flight at the time of the sample.
    pub(crate) in_flight: u64,
    /// Mean number of requests in flight between the samples, by Little's law: their rate times
    /// their mean latency.
    pub(crate) mean_depth: f64,
    pub(crate) requests: Vec<RequestSummary>,
}

/// Figures of requests of one kind.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct RequestSummary {
    /// `read`, `write`, `flush` or `discard`.
    pub(crate) request: String,
    pub(crate) in_flight: u64,
    pub(crate) failed: Amount,
    pub(crate) bytes: Amount,
    pub(crate) latency: Durations,
}

impl DeviceSummary {
    /// The requests of one kind.
    pub(crate) fn of(&self, request: &str) -> Option<&RequestSummary> {
        self.requests.iter().find(|summary| summary.request == request)
    }
}

pub(super) fn summary(
    pool: &PoolSample,
    before: Option<&PoolSample>,
    seconds: f64,
) -> Vec<DeviceSummary> {
    let summary = |sample: &DeviceSample| {
        let mut earlier = before.into_iter().flat_map(|pool| &pool.devices);
        let earlier = earlier.find(|other| (&other.path, other.l2) == (&sample.path, sample.l2));
        device(sample, earlier, seconds)
    };
    pool.devices.iter().map(summary).collect()
}

fn device(sample: &DeviceSample, before: Option<&DeviceSample>, seconds: f64) -> DeviceSummary {
    let summary = |kind: &DeviceRequests| {
        let mut earlier = before.into_iter().flat_map(|device| &device.requests);
        let earlier = earlier.find(|other| other.request == kind.request);
        let amount =
            |of: fn(&DeviceRequests) -> u64| Amount::of(of(kind), earlier.map(of), seconds);
        let parts = recorded(&kind.latency, earlier.map(|earlier| &earlier.latency));
        RequestSummary {
            request: kind.request.clone(),
            in_flight: kind.in_flight,
            failed: amount(|kind| kind.failed),
            bytes: amount(|kind| kind.bytes),
            latency: Durations::of(&parts, seconds),
        }
    };
    let requests: Vec<RequestSummary> = sample.requests.iter().map(summary).collect();
    let depth = |kind: &RequestSummary| {
        kind.latency.per_second * kind.latency.interval.mean_ns as f64 / 1e9
    };
    DeviceSummary {
        path: sample.path.clone(),
        l2: sample.l2,
        in_flight: requests.iter().map(|kind| kind.in_flight).sum(),
        mean_depth: requests.iter().map(depth).sum(),
        requests,
    }
}
