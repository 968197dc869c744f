//! `forebay trace`: records traces of block accesses, describes and converts them.

mod convert;
mod info;
mod record;

use std::fs::{File, OpenOptions};
use std::io::{BufReader, ErrorKind, Read, Seek, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

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

/// A file that gets its name when it is complete. Until then it has a temporary one, and vanishes
/// with an error.
struct Replacement {
    file: tempfile::NamedTempFile,
    path: PathBuf,
    force: bool,
}

impl Replacement {
    /// Begins a file that only this user may read. There must be none at `path` without `force`.
    fn begin(path: &Path, force: bool) -> Result<Self> {
        match path.symlink_metadata() {
            Ok(_) if !force => return Err(exists(path)),
            Ok(found) if !found.is_file() => {
                return Err(Failure::new(format!(
                    "{}: is no regular file, and is not replaced; give another file",
                    path.display()
                )));
            }
            _ => {}
        }
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        let file = tempfile::Builder::new()
            .prefix(".forebay-")
            .tempfile_in(folder.unwrap_or(Path::new(".")))
            .map_err(|error| Failure::about(path, "create it", &error))?;
        Ok(Self { file, path: path.to_owned(), force })
    }

    /// Gives the file its name.
    fn finish(self) -> Result<()> {
        let Self { file, path, force } = self;
        let named = if force { file.persist(&path) } else { file.persist_noclobber(&path) };
        named.map(drop).map_err(|failed| match failed.error.kind() {
            ErrorKind::AlreadyExists => exists(&path),
            _ => Failure::about(&path, "create it", &failed.error),
        })
    }
}

impl Write for Replacement {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.file.write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.file.flush()
    }
}

fn exists(path: &Path) -> Failure {
    Failure::new(format!(
        "{}: exists already; give another file, or --force to replace it",
        path.display()
    ))
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
        ErrorKind::AlreadyExists => exists(path),
        _ => Failure::about(path, "create it", &error),
    })?;
    // One that existed may be readable for others.
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    file.set_permissions(mode).map_err(|error| Failure::about(path, "set its mode", &error))?;
    Ok(file)
}
