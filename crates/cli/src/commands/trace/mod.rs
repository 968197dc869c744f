//! `forebay trace`: records traces of block accesses, describes and converts them.

mod convert;
mod info;
mod record;

use std::fs::{File, OpenOptions};
use std::io::{BufReader, ErrorKind, Read, Seek};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use forebay_pool::trace::{TraceError, TraceReader};
use zstd::stream::read::Decoder;

use crate::args::TraceCommand;
use crate::error::{Failure, Result};

/// First bytes of a file that zstd has compressed.
const ZSTD_MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];
/// Bound of a decoder's window, as a power of two.
const WINDOW_SHIFT: u32 = 27;

type Reader = TraceReader<Box<dyn Read>>;

pub(crate) fn run(command: &TraceCommand) -> Result<()> {
    match command {
        TraceCommand::Record(args) => record::run(args),
        TraceCommand::Info { file, json } => info::run(file, *json),
        TraceCommand::Convert { file, to, output, force } => {
            convert::run(file, *to, output, *force)
        }
    }
}

/// Opens a trace, compressed or not.
///
/// # Errors
/// If it is none.
fn open(path: &Path) -> Result<Reader> {
    let failed = |error: std::io::Error| Failure::about(path, "read it", &error);
    let mut file = File::open(path).map_err(failed)?;
    let mut magic = Vec::new();
    (&file).take(ZSTD_MAGIC.len() as u64).read_to_end(&mut magic).map_err(failed)?;
    file.rewind().map_err(failed)?;
    let input: Box<dyn Read> = match magic == ZSTD_MAGIC {
        true => {
            let mut decoder = Decoder::new(file).map_err(failed)?;
            decoder.window_log_max(WINDOW_SHIFT).map_err(failed)?;
            Box::new(BufReader::new(decoder))
        }
        false => Box::new(BufReader::new(file)),
    };
    TraceReader::new(input).map_err(|error| unreadable(path, &error))
}

fn unreadable(path: &Path, error: &TraceError) -> Failure {
    Failure::new(format!("{}: {error}", path.display()))
}

/// Creates a file that only this user may read. It must not exist without `force`.
fn create(path: &Path, force: bool) -> Result<File> {
    let mut options = OpenOptions::new();
    options.write(true).mode(0o600).custom_flags(libc::O_NOFOLLOW);
    match force {
        true => options.create(true).truncate(true),
        false => options.create_new(true),
    };
    let file = options.open(path).map_err(|error| match error.kind() {
        ErrorKind::AlreadyExists => Failure::new(format!(
            "{}: exists already; give another file, or --force to replace it",
            path.display()
        )),
        _ => Failure::about(path, "create it", &error),
    })?;
    // One that existed may be readable for others.
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    file.set_permissions(mode).map_err(|error| Failure::about(path, "set its mode", &error))?;
    Ok(file)
}
