//! The options for metrics, of the commands that start a daemon or use one.

use crate::args::MetricsArgs;
use crate::control::Request;
use crate::control::client::Process;
use crate::control::messages::MetricsInfo;
use crate::daemon::metrics::MetricsRequest;
use crate::error::Result;
use crate::output;

/// What the options ask for.
pub(super) fn request(args: &MetricsArgs) -> Option<MetricsRequest> {
    let (allow_remote, names) = (args.metrics_allow_remote, args.metrics_names);
    args.metrics.map(|address| MetricsRequest { address, allow_remote, names })
}

/// Has a daemon serve metrics, if the options ask for it.
///
/// # Errors
/// If it cannot, or serves them otherwise.
pub(super) fn serve(args: &MetricsArgs, process: &Process) -> Result<Option<MetricsInfo>> {
    request(args).map(|metrics| process.ask(&Request::Metrics { metrics })).transpose()
}

/// Prints where metrics are served.
pub(super) fn print(info: Option<&MetricsInfo>) {
    if let Some(info) = info {
        output::line(&text(info));
    }
}

/// Says where metrics are served.
pub(super) fn text(info: &MetricsInfo) -> String {
    format!("metrics at {0}metrics, live plots at {0}", info.url)
}
