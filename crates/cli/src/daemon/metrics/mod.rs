//! Metrics of a daemon over HTTP: when they are served, and where their values come from.
//!
//! A daemon serves all its pools at one address, from the first request for it until it ends.
//! `forebay-metrics` is the server; this module converts statistics of the libraries to its
//! metrics, by part.
//!
//! All who reach the address can read, so values name no path: neither devices nor mount points,
//! nor causes of errors, which may contain them. [`MetricsRequest::names`] includes them. Names of
//! pools and datasets are labels in any case.
//!
//! Locking: reading takes `daemon-state`, the registry's locks, and short locks of the pool that a
//! commit does not hold; none of the cache.

mod cache;
mod mounts;
mod pools;

use std::collections::HashMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Weak};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use forebay_base::counters::{CounterRow, CounterValue};
use forebay_metrics::{Limits, Server, ServerError, ServerOptions, Snapshot, Source};
use forebay_pool::Pool;
use serde::{Deserialize, Serialize};

use super::{Daemon, ImportedPool, curve, explain, stats};
use crate::commands::advise::advice;
use crate::control::messages::{CurveReport, MetricsInfo, ProcessStats};
use crate::error::{Failure, Result};

/// The time that the page explains.
const EXPLAINED: Duration = Duration::from_secs(600);

/// A request to serve metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct MetricsRequest {
    pub(crate) address: SocketAddr,
    /// Whether the address may be another than a loopback address.
    pub(crate) allow_remote: bool,
    /// Whether paths are included.
    pub(crate) names: bool,
}

/// The server of a daemon, and how it was requested.
pub(crate) struct Serving {
    request: MetricsRequest,
    server: Server,
}

impl Serving {
    fn info(&self) -> MetricsInfo {
        MetricsInfo { url: format!("http://{}/", self.server.address()) }
    }

    /// Whether it is what another request asks for.
    fn suits(&self, request: MetricsRequest) -> bool {
        let address = match request.address.port() {
            0 => SocketAddr::new(request.address.ip(), self.server.address().port()),
            _ => request.address,
        };
        address == self.server.address() && request.names == self.request.names
    }
}

impl Daemon {
    /// Starts to serve metrics, unless they are served already as requested.
    ///
    /// # Errors
    /// If they are served otherwise, or the server cannot be started. A daemon without a pool ends
    /// then, because the command that started it for this gives up.
    pub(crate) fn serve_metrics(self: &Arc<Self>, request: MetricsRequest) -> Result<MetricsInfo> {
        self.try_serve_metrics(request).inspect_err(|_| self.note_used())
    }

    fn try_serve_metrics(self: &Arc<Self>, request: MetricsRequest) -> Result<MetricsInfo> {
        let mut metrics = self.metrics.lock();
        if let Some(serving) = &*metrics {
            return match serving.suits(request) {
                true => Ok(serving.info()),
                false => Err(Failure::new(format!(
                    "process {} serves metrics at {} already, {} --metrics-names; give the same \
                     options, or use --separate to start another daemon",
                    std::process::id(),
                    serving.info().url,
                    if serving.request.names { "with" } else { "without" }
                ))),
            };
        }
        let options = ServerOptions {
            address: request.address,
            allow_remote: request.allow_remote,
            limits: Limits::default(),
        };
        let source = DaemonSource { daemon: Arc::downgrade(self), names: request.names };
        let server = Server::start(&options, Arc::new(source)).map_err(|error| match error {
            ServerError::NotLoopback(_) => {
                Failure::new(format!("{error}; add --metrics-allow-remote if they may"))
            }
            _ => Failure::new(error.to_string()),
        })?;
        let serving = metrics.insert(Serving { request, server });
        Ok(serving.info())
    }

    /// Where metrics are served.
    pub(crate) fn metrics_info(&self) -> Option<MetricsInfo> {
        self.metrics.lock().as_ref().map(Serving::info)
    }
}

/// Reads the statistics of a daemon.
struct DaemonSource {
    // The daemon has the server.
    daemon: Weak<Daemon>,
    names: bool,
}

impl Source for DaemonSource {
    fn snapshot(&self) -> Snapshot {
        let mut out = Snapshot::new();
        let Some(daemon) = self.daemon.upgrade() else { return out };
        process(&daemon, &mut out);
        cache::add(&daemon.cache, &mut out);
        let imported = daemon.pools();
        for (name, imported) in labels_of(&imported).iter().zip(&imported) {
            pools::add(&imported.pool(), name, self.names, &mut out);
            if let Some(following) = &imported.following {
                pools::follow(&following.info(imported), name, &mut out);
            }
            for mount in imported.mounts() {
                mounts::add(&mount, name, self.names, &mut out);
            }
        }
        out
    }

    fn stats_json(&self) -> String {
        let mut stats =
            self.daemon.upgrade().map(|daemon| stats::process(&daemon)).unwrap_or_default();
        if !self.names {
            remove_paths(&mut stats);
        }
        // It consists of strings and numbers, which have a form in JSON.
        serde_json::to_string(&stats).unwrap_or_default()
    }

    fn insight_json(&self) -> String {
        let insight = self.daemon.upgrade().map(|daemon| Insight::of(&daemon)).unwrap_or_default();
        serde_json::to_string(&insight).unwrap_or_default()
    }
}

/// The curve of the cache, what follows from it, and why blocks were missed.
#[derive(Default, Serialize)]
struct Insight {
    curve: CurveReport,
    /// A summary, then the sentences of each cause.
    explanation: Vec<Vec<String>>,
}

impl Insight {
    fn of(daemon: &Daemon) -> Self {
        let mut curve = curve::report(daemon);
        curve.advice = advice::sentences(&curve, None, None);
        let explained = explain::without_paths(daemon, EXPLAINED);
        Self { curve, explanation: explained.map(|it| it.sentences).unwrap_or_default() }
    }
}

/// Removes all paths, and texts that may contain them.
fn remove_paths(stats: &mut ProcessStats) {
    for pool in &mut stats.pools {
        if let Some(why) = &mut pool.suspended {
            *why = format!("`forebay status {}` shows the cause", pool.name);
        }
        for device in &mut pool.l2_devices {
            device.path.clear();
            device.why = None;
        }
    }
    for mount in &mut stats.mounts {
        mount.at = PathBuf::new();
    }
}

/// The label of each pool: its name, with the guid if another pool has the name too.
fn labels_of(imported: &[Arc<ImportedPool>]) -> Vec<String> {
    let pools: Vec<Arc<Pool>> = imported.iter().map(|it| it.pool()).collect();
    let mut named: HashMap<&str, usize> = HashMap::new();
    for pool in &pools {
        *named.entry(pool.name()).or_default() += 1;
    }
    let label = |pool: &Arc<Pool>| match named[pool.name()] {
        1 => pool.name().to_owned(),
        _ => format!("{} ({:016x})", pool.name(), pool.guid()),
    };
    pools.iter().map(label).collect()
}

/// Metrics of the process. Those without our prefix are alike in all programs.
fn process(daemon: &Daemon, out: &mut Snapshot) {
    let version = [("version", env!("CARGO_PKG_VERSION"))];
    out.gauge("forebay_build_info", "Version of the program; the value is 1.", &version, 1.0);
    let started = SystemTime::now().checked_sub(daemon.started.elapsed()).unwrap_or(UNIX_EPOCH);
    let since = started.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO).as_secs();
    let help = "When the process started, in seconds since 1970.";
    out.gauge("process_start_time_seconds", help, &[], since as f64);
    let resident = forebay_base::memory::rss_bytes().unwrap_or(0);
    let help = "Resident memory of the process.";
    out.gauge("process_resident_memory_bytes", help, &[], resident as f64);
    let help = "Memory limit of the process, by --memory.";
    out.gauge("forebay_memory_limit_bytes", help, &[], daemon.plan.total_bytes as f64);
}

/// Adds counters that come without their help, which is in the table `rows`.
fn counters(
    out: &mut Snapshot,
    part: &str,
    rows: &'static [CounterRow],
    values: &[(&'static str, &'static str, u64)],
    labels: &[(&'static str, &str)],
) {
    let described = values.iter().filter_map(|(name, label, value)| {
        let row = rows.iter().find(|row| row.name == *name)?;
        let label = Some(*label).filter(|label| !label.is_empty());
        let (name, split, help, value) = (row.name, row.split, row.help, *value);
        Some(CounterValue { name, split, label, help, value })
    });
    out.counters(part, &described.collect::<Vec<_>>(), labels);
}
