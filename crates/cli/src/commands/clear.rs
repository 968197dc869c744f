//! `forebay clear`: ends the suspension of a pool whose devices work again.

use crate::args::ClearArgs;
use crate::control::Request;
use crate::control::client::{self, Target};
use crate::error::Result;
use crate::output;

pub(crate) fn run(args: &ClearArgs) -> Result<()> {
    match client::find(&args.pool)? {
        Target::InUse { process, pool } if pool.suspended.is_some() => {
            process.ask::<()>(&Request::Clear { pool: pool.guid })?;
            output::line(&format!("resumed pool {}: its changes are durable", pool.name));
        }
        Target::InUse { pool, .. } => {
            output::line(&format!("{}: the pool is not suspended", pool.name));
        }
        Target::Paths(_) => {
            output::line(&format!("{}: the pool is not in use, so not suspended", args.pool));
        }
    }
    Ok(())
}
