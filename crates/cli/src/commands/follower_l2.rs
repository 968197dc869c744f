//! The file of `--l2`: the L2 of a host that follows a pool.

use std::path::PathBuf;

use super::expand::make_file;
use crate::args::ReaderArgs;
use crate::error::{Failure, Result};
use crate::pools;

/// Creates the file if it is to be created, and returns its path then. The path in `readers`
/// becomes absolute, for a daemon.
///
/// # Errors
/// If there is no file and no size, or the pool is not followed.
pub(super) fn make(readers: &mut ReaderArgs) -> Result<Option<PathBuf>> {
    let Some(path) = &readers.l2 else {
        let text = "--l2-size: is the size of the file of --l2, which is not given";
        return readers.l2_size.map_or(Ok(None), |_| Err(Failure::usage(text)));
    };
    if !readers.follow {
        let text = "--l2: is for --follow; `forebay l2 add` adds an L2 device to a pool";
        return Err(Failure::usage(text));
    }
    if readers.l2_size.is_none() && !path.exists() {
        let path = path.display();
        let text = format!("{path}: no such file or device; give --l2-size to create a file");
        return Err(Failure::new(text));
    }
    let made = make_file(path, readers.l2_size)?;
    let path = pools::canonical(path)?;
    readers.l2 = Some(path.clone());
    Ok(made.then_some(path))
}
