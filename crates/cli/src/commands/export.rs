//! `forebay export`: unmounts all datasets of a pool, and exports it.

use std::sync::Arc;

use forebay_pool::GivesUp;

use crate::args::ExportArgs;
use crate::control::Request;
use crate::control::client::{self, Target};
use crate::error::Result;
use crate::memory::MemoryPlan;
use crate::output;
use crate::pools::{self, ImportRequest};

pub(crate) fn run(args: &ExportArgs) -> Result<()> {
    match client::find(&args.pool)? {
        Target::InUse { process, pool } => {
            process.ask::<()>(&Request::Export {
                pool: pool.guid,
                lazy: args.lazy,
                force: args.force,
            })?;
            output::line(&format!("exported pool {}", pool.name));
        }
        Target::Paths(paths) => {
            let labels = pools::labels(&paths)?;
            if labels.iter().all(|label| label.as_ref().is_some_and(|label| !label.active)) {
                output::line(&format!("{}: the pool is exported already", args.pool));
                return Ok(());
            }
            // After a crash: the import replays the intent log.
            let cache = pools::cache(MemoryPlan::small())?;
            let pool = pools::import(&ImportRequest::plain(paths, false), &cache)?;
            let name = pool.name().to_owned();
            // Without force it waits until the store answers, or the process is killed.
            let gives_up: Option<GivesUp> = args.force.then(|| Arc::new(|| true) as GivesUp);
            pool.close_with_devices(gives_up)?;
            output::line(&format!(
                "exported pool {name} after a crash: its intent log was replayed"
            ));
        }
    }
    Ok(())
}
