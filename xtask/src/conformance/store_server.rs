//! `cargo xtask store-server`: MinIO and the proxy, for work by hand and `scripts/compare-mounts`.
//!
//! Standard output has one line of JSON with the variables of clients and the bucket, and then one
//! line of JSON for each line of standard input. The server ends with standard input.

use std::io::{self, Write};
use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};

use super::fixture::target;
use super::minio::{self, BUCKET, Minio};
use super::{Failure, Outcome};
use crate::store_proxy::{Behaviour, Fault, Proxy};

const HELP: &str = "delay MS | rate BYTES_PER_SECOND | fault NAME PER_MILLE | behave | counts | \
                    kill | restart; `behave` ends delay, rate and fault, `counts` also resets";

/// Serves until the end of standard input.
pub(crate) fn run(root: &Path) -> io::Result<bool> {
    if let Some(Outcome::Skipped(_, why)) = minio::missing() {
        return Err(io::Error::other(why));
    }
    let start = || {
        let store = Minio::start(&target(root)?)?;
        let proxy = Proxy::start(store.address(), 1).map_err(|error| error.to_string())?;
        Ok((store, proxy))
    };
    let (mut store, proxy) = start().map_err(|why: Failure| io::Error::other(why))?;
    let variables = Minio::environment(proxy.address()).into_iter();
    let variables: serde_json::Map<String, Value> = variables
        .map(|(name, value)| (name.to_owned(), value.to_string_lossy().into_owned().into()))
        .collect();
    say(&json!({"bucket": BUCKET, "variables": variables}))?;
    let mut behaviour = Behaviour::default();
    for line in io::stdin().lines() {
        let answer = obey(&line?, &mut store, &proxy, &mut behaviour);
        say(&answer.unwrap_or_else(|why| json!({"error": why})))?;
    }
    Ok(true)
}

fn say(answer: &Value) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{answer}")?;
    out.flush()
}

/// Does what a line says.
fn obey(
    line: &str,
    store: &mut Minio,
    proxy: &Proxy,
    behaviour: &mut Behaviour,
) -> Result<Value, Failure> {
    let number = |text: &str| text.parse().map_err(|_| format!("`{text}` is not a number"));
    match line.split_whitespace().collect::<Vec<_>>().as_slice() {
        ["delay", ms] => behaviour.delay = Duration::from_millis(number(ms)?),
        ["rate", bytes] => behaviour.bytes_per_second = Some(number(bytes)?.max(1)),
        ["fault", name, per_mille] => {
            let per_mille = number(per_mille)?.min(1000) as u16;
            behaviour.fault = Some((name.parse::<Fault>()?, per_mille));
        }
        ["behave"] => *behaviour = Behaviour::default(),
        ["kill"] => store.kill(),
        ["restart"] => store.restart()?,
        ["counts"] => {
            let counts = proxy.take_counts();
            return Ok(json!({
                "requests": counts.requests,
                "faults": counts.faults,
                "in_flight_max": counts.in_flight_max,
                "body_bytes": counts.body_bytes,
            }));
        }
        _ => return Err(HELP.to_owned()),
    }
    proxy.behave(*behaviour);
    Ok(json!({"behaviour": format!("{behaviour:?}")}))
}
