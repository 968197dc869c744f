//! `forebay clear`: resumes a suspended pool, and empties the error log of a pool.

use crate::args::ClearArgs;
use crate::control::Request;
use crate::control::client::{self, Target};
use crate::error::Result;
use crate::memory::MemoryPlan;
use crate::output;
use crate::pools::{self, ImportRequest};

pub(crate) fn run(args: &ClearArgs) -> Result<()> {
    let name = match client::find(&args.pool)? {
        Target::InUse { process, pool } => {
            let notes: Vec<String> = process.ask(&Request::Clear { pool: pool.guid })?;
            notes.iter().for_each(|note| output::line(note));
            if pool.suspended.is_some() {
                output::line(&format!("resumed pool {}: its changes are durable", pool.name));
            }
            pool.name
        }
        Target::Paths(paths) => {
            let cache = pools::cache(MemoryPlan::small())?;
            let pool = pools::import(&ImportRequest::plain(paths, false), &cache)?;
            let name = pool.name().to_owned();
            pool.clear_errors()?;
            pool.export()?;
            name
        }
    };
    output::line(&format!("cleared the errors of pool {name}"));
    Ok(())
}
