//! `forebay tunable`: shows and sets the tunables of an imported pool and of its cache.

use crate::control::Request;
use crate::control::client::{self, Process, Target};
use crate::control::messages::{PoolInfo, TunableInfo};
use crate::error::{Failure, Result};
use crate::{output, units};

pub(crate) fn get(spec: &str, name: Option<&str>, json: bool) -> Result<()> {
    let (process, pool) = in_use(spec)?;
    let mut all: Vec<TunableInfo> = process.ask(&Request::Tunables { pool: pool.guid })?;
    if let Some(name) = name {
        all.retain(|tunable| tunable.name == name);
        if all.is_empty() {
            let text =
                format!("no tunable is called {name}; `forebay tunable get {spec}` lists them");
            return Err(Failure::new(text));
        }
    }
    if json {
        return output::json(&all);
    }
    let rows: Vec<Vec<String>> = all
        .iter()
        .map(|t| {
            [&t.of, &t.name, &t.value, &t.default, &t.range, &t.unit, &t.settable]
                .map(String::clone)
                .to_vec()
        })
        .collect();
    output::print(&units::table(
        &["OF", "NAME", ">VALUE", ">DEFAULT", "RANGE", "UNIT", "SETTABLE"],
        &rows,
    ));
    if name.is_some() {
        for tunable in &all {
            output::line(&tunable.help);
        }
    }
    Ok(())
}

pub(crate) fn set(spec: &str, name: &str, value: &str) -> Result<()> {
    let (process, pool) = in_use(spec)?;
    let (name, value) = (name.to_owned(), value.to_owned());
    process.ask::<()>(&Request::SetTunable {
        pool: pool.guid,
        name: name.clone(),
        value: value.clone(),
    })?;
    output::line(&format!("{name} is {value} until pool {} is exported", pool.name));
    Ok(())
}

fn in_use(spec: &str) -> Result<(Process, PoolInfo)> {
    match client::find(spec)? {
        Target::InUse { process, pool } => Ok((*process, pool)),
        Target::Paths(_) => Err(Failure::new(format!(
            "{spec}: the pool is not in use, and tunables belong to imported pools; mount it, with --tunable NAME=VALUE to set one"
        ))),
    }
}
