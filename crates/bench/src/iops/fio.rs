//! fio's io_uring engine at a depth, run as a child process whose JSON is parsed.
//!
//! The flags match Forebay's: one thread, one registered file, no registered buffers, direct or
//! not. Latency is from before submission to completion.

use std::process::Command;

use serde_json::Value;

use super::{IopsPlan, IopsResult};
use crate::options::Failure;
use crate::test_file::BLOCK_BYTES;

/// An installed fio.
#[derive(Clone, Debug)]
pub(crate) struct Fio {
    version: String,
}

impl Fio {
    /// Finds fio on the path, if it has the io_uring engine.
    pub(crate) fn find() -> Option<Self> {
        let said = |arguments: &[&str]| {
            let output = Command::new("fio").args(arguments).output().ok()?;
            output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
        };
        let version = said(&["--version"])?.trim().to_owned();
        said(&["--enghelp=io_uring"])?;
        Some(Self { version })
    }
}

/// Reads with fio.
///
/// # Errors
/// If fio fails, or its output cannot be parsed.
pub(crate) fn theirs(plan: &IopsPlan<'_>, fio: &Fio) -> Result<IopsResult, Failure> {
    let output = Command::new("fio").args(arguments(plan)).output()?;
    let said = String::from_utf8_lossy(&output.stdout);
    if !output.status.success() {
        let errors = String::from_utf8_lossy(&output.stderr);
        return Err(format!("fio failed: {}", errors.trim()).into());
    }
    let mut found = parse(&said)?;
    found.config = format!("{}, io_uring, registered file", fio.version);
    Ok(found)
}

fn arguments(plan: &IopsPlan<'_>) -> Vec<String> {
    // A colon separates names of files.
    let path = plan.path.to_string_lossy().replace('\\', "\\\\").replace(':', "\\:");
    let direct = u8::from(plan.direct);
    let runtime_ms = (plan.seconds * 1e3).round().max(1.0);
    vec![
        "--name=forebay-bench".to_owned(),
        format!("--filename={path}"),
        "--readonly".to_owned(),
        "--thread".to_owned(),
        "--ioengine=io_uring".to_owned(),
        "--registerfiles=1".to_owned(),
        "--rw=randread".to_owned(),
        "--norandommap".to_owned(),
        format!("--randseed={}", plan.seed),
        format!("--bs={BLOCK_BYTES}"),
        format!("--size={}", plan.size_bytes),
        format!("--iodepth={}", plan.depth),
        format!("--direct={direct}"),
        // Keep the page cache, as for Forebay.
        "--invalidate=0".to_owned(),
        "--time_based".to_owned(),
        format!("--runtime={runtime_ms}ms"),
        "--disable_slat=1".to_owned(),
        "--clat_percentiles=0".to_owned(),
        "--lat_percentiles=1".to_owned(),
        "--percentile_list=50:99".to_owned(),
        "--output-format=json".to_owned(),
    ]
}

/// Parses fio's JSON, which warnings may precede.
fn parse(text: &str) -> Result<IopsResult, Failure> {
    let json = text.find('{').map_or("", |start| &text[start..]);
    let all: Value =
        serde_json::from_str(json).map_err(|e| format!("cannot parse fio's JSON: {e}"))?;
    let job = &all["jobs"][0];
    let read = &job["read"];
    let number = |value: &Value, name: &str| {
        value.as_f64().ok_or_else(|| format!("fio's JSON has no `{name}`"))
    };
    let error = number(&job["error"], "error")?;
    if error != 0.0 {
        return Err(format!("fio's job failed with error {error}").into());
    }
    let ios = number(&read["total_ios"], "total_ios")?.max(1.0);
    let percent = number(&job["usr_cpu"], "usr_cpu")? + number(&job["sys_cpu"], "sys_cpu")?;
    let ran_ms = number(&job["job_runtime"], "job_runtime")?;
    let percentile = |name| number(&read["lat_ns"]["percentile"][name], name);
    Ok(IopsResult {
        config: String::new(),
        iops: number(&read["iops"], "iops")?,
        cpu_ns_per_io: percent / 100.0 * ran_ms * 1e6 / ios,
        p50_ns: percentile("50.000000")?,
        p99_ns: percentile("99.000000")?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_understood() {
        let text = r#"fio: a warning
            {"jobs": [{"error": 0, "job_runtime": 500, "usr_cpu": 10.0, "sys_cpu": 30.0,
            "read": {"iops": 2000.0, "total_ios": 1000, "lat_ns": {"percentile":
            {"50.000000": 90000, "99.000000": 400000}}}}]}"#;
        let found = parse(text).expect("an answer of fio");
        assert_eq!((found.iops, found.p50_ns, found.p99_ns), (2000.0, 9e4, 4e5));
        assert!((found.cpu_ns_per_io - 200_000.0).abs() < 1e-6, "200 ms of CPU in 1000 reads");
    }

    #[test]
    fn nonsense_is_refused() {
        for text in ["", "fio: no such file", "{}", r#"{"jobs": [{"error": 5}]}"#] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
