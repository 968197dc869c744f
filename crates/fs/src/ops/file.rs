//! File content: open, read, write, fsync.

use forebay_base::sync::Arc;
use forebay_pool::{Object, Wait};

use crate::error::{Error, ErrorKind, Result};
use crate::fs::FileSystem;
use crate::inode::Inode;
use crate::inodes::{InodeRef, stale};
use crate::read_buffers::Reader;
use crate::stats::{FsCounters, Op};
use crate::types::{Caller, FileKind, Handle, Ino, Write};
use crate::workers::Dispatch;

use super::privileges::KillPriv;

/// Largest number of bytes written in one transaction.
const PIECE_BYTES: usize = 1 << 20;
/// Largest number of bytes read at once.
const READ_MAX: usize = 4 << 20;
/// Largest file size in bytes. Most callers have signed offsets.
const SIZE_MAX: u64 = i64::MAX as u64;
/// Largest number of asynchronous fetches before a read goes to a worker thread.
const FETCHES_MAX: u32 = 4;

/// What a transaction has written of a piece.
struct Written {
    bytes: usize,
    /// Whether a device that is gone keeps the rest from being written.
    goes_on: bool,
}

/// Takes the result of a read.
type ReadCallback = Box<dyn FnOnce(Result<&[u8]>) + Send>;

/// A read that may complete later.
struct AsyncRead {
    ino: Ino,
    offset: u64,
    len: usize,
    rounds: u32,
    done: ReadCallback,
}

impl FileSystem {
    /// Opens an inode. With `truncate`, empties it on behalf of that caller. The inode stays until
    /// the handle is released, even if it is unlinked.
    ///
    /// # Errors
    /// [`Stale`](ErrorKind::Stale), or an error of [`setattr`](Self::setattr).
    pub fn open(&self, ino: Ino, truncate: Option<Caller>) -> Result<Handle> {
        self.run(Op::Open, || {
            let inode = self.inode_of(ino)?;
            if let Some(caller) = truncate.filter(|_| inode.kind == FileKind::File) {
                self.truncate_on_open(ino, caller)?;
            }
            Ok(self.add_open(&inode))
        })
    }

    /// Closes a handle of [`open`](Self::open), [`create`](Self::create) or
    /// [`opendir`](Self::opendir).
    pub fn release(&self, handle: Handle) {
        let _ = self.enter(Op::Release);
        let Some(inode) = self.number(Ino(handle.0)).ok().and_then(|number| self.cached(number))
        else {
            return;
        };
        {
            let mut state = inode.state();
            if state.opens == 0 {
                return;
            }
            state.opens -= 1;
        }
        // Drop the reference of the handle. `inode` is another one, so this is not the last.
        self.put(&inode);
    }

    /// Adds an open handle.
    pub(crate) fn add_open(&self, inode: &InodeRef<'_>) -> Handle {
        inode.state().opens += 1;
        inode.add_ref();
        Handle(self.ino(inode.number).0)
    }

    /// Reads up to `len` bytes at `offset` and passes them to `with`. Returns fewer bytes only at
    /// the end of the file, and never more than 4 MiB.
    ///
    /// # Errors
    /// [`IsADirectory`](ErrorKind::IsADirectory), [`Io`](ErrorKind::Io),
    /// [`Corrupt`](ErrorKind::Corrupt).
    pub fn read(
        &self,
        ino: Ino,
        handle: Handle,
        offset: u64,
        len: usize,
        with: &mut dyn FnMut(&[u8]),
    ) -> Result<()> {
        let _ = handle;
        let reader = match self.wait {
            Wait::Allowed => Reader::Blocking,
            Wait::Refused => Reader::Receiver,
        };
        let read = self.read_content(ino, offset, len, reader, with)?;
        let inode = read.ok_or_else(|| Error::new(ErrorKind::Io, "a read had no buffer"))?;
        self.touch_atime(&inode);
        Ok(())
    }

    /// `None` if the thread needs a buffer, and may not wait for one.
    fn read_content(
        &self,
        ino: Ino,
        offset: u64,
        len: usize,
        reader: Reader,
        with: &mut dyn FnMut(&[u8]),
    ) -> Result<Option<InodeRef<'_>>> {
        self.run(Op::Read, || self.read_once(ino, offset, len, reader, with))
    }

    fn read_once(
        &self,
        ino: Ino,
        offset: u64,
        len: usize,
        reader: Reader,
        with: &mut dyn FnMut(&[u8]),
    ) -> Result<Option<InodeRef<'_>>> {
        let inode = self.inode_of(ino)?;
        let object = inode.file(self.dataset(), self.wait)?;
        let there = object.size().saturating_sub(offset);
        let len = len.min(READ_MAX).min(usize::try_from(there).unwrap_or(READ_MAX));
        let read = self.shared.options.read_buffers.with(len, reader, |buffer| {
            let read = object.with_wait(self.wait).read(offset, buffer);
            read.map(|read| with(&buffer[..read]))
        });
        match read {
            None => Ok(None),
            Some(Ok(())) => Ok(Some(inode)),
            Some(Err(error)) if error.kind() == forebay_pool::ErrorKind::Closed => Err(stale()),
            Some(Err(error)) => Err(error.into()),
        }
    }

    /// Reads without blocking. Calls `done` with the result: on this thread if all data is cached,
    /// otherwise later on an I/O callback or a worker thread. `done` must not block. The inode must
    /// stay open or looked up until then.
    pub fn read_async(
        &self,
        ino: Ino,
        handle: Handle,
        offset: u64,
        len: usize,
        done: ReadCallback,
    ) {
        let _ = handle;
        self.non_blocking().try_read(AsyncRead { ino, offset, len, rounds: 0, done });
    }

    /// The handle is in non-blocking mode.
    fn try_read(&self, read: AsyncRead) {
        let Some(mut read) = self.try_complete(read) else { return };
        read.rounds += 1;
        let object = match read.rounds <= FETCHES_MAX {
            true => self.file_of(read.ino).ok(),
            false => None,
        };
        if let Some(object) = object {
            self.counters().add(FsCounters::READS_FETCHED, 0, 1);
            let (offset, len) = (read.offset, read.len.min(READ_MAX) as u64);
            let fs = self.clone();
            let again = move || {
                fs.try_read(read);
                fs.drop_in_background();
            };
            return object.fetch(offset, len, Box::new(again));
        }
        self.counters().add(FsCounters::READS_OFFLOADED, 0, 1);
        let finish = move |fs: &Self, dispatch| {
            if dispatch == Dispatch::Cancelled {
                return (read.done)(Err(fs.no_worker_error()));
            }
            // A thread that may block never gets `WouldBlock`.
            if let Some(read) = fs.try_complete(read) {
                (read.done)(Err(Error::new(
                    ErrorKind::Io,
                    "a read that may block did not complete",
                )));
            }
        };
        self.spawn_from_callback(Box::new(finish));
    }

    fn file_of(&self, ino: Ino) -> Result<Arc<Object>> {
        self.inode_of(ino)?.file(self.dataset(), self.wait)
    }

    /// Reads and completes the request. Returns it if it would block.
    fn try_complete(&self, read: AsyncRead) -> Option<AsyncRead> {
        let AsyncRead { ino, offset, len, rounds, .. } = read;
        let reader = match self.wait {
            Wait::Allowed => Reader::Blocking,
            Wait::Refused if rounds == 0 => Reader::Receiver,
            Wait::Refused => Reader::Loader,
        };
        let mut left = Some(read);
        let tried = self.read_content(ino, offset, len, reader, &mut |bytes| {
            if let Some(read) = left.take() {
                (read.done)(Ok(bytes));
            }
        });
        match tried {
            // A worker waits for a buffer.
            Ok(None) => left.map(|read| AsyncRead { rounds: FETCHES_MAX, ..read }),
            // What ends a load may hold a transaction.
            Ok(Some(inode)) if reader != Reader::Loader => {
                self.touch_atime(&inode);
                left
            }
            Ok(Some(inode)) => {
                if self.atime_is_due(&inode) {
                    self.touch_atime_later(ino);
                }
                left
            }
            Err(error) if error.kind() != ErrorKind::WouldBlock => {
                if let Some(read) = left.take() {
                    (read.done)(Err(error));
                }
                None
            }
            _ => left,
        }
    }

    /// Writes data and returns the number of bytes written. That is less than the length only after
    /// an error or where the write would block.
    ///
    /// # Errors
    /// [`FileTooLarge`](ErrorKind::FileTooLarge), [`NoSpace`](ErrorKind::NoSpace), and others.
    pub fn write(
        &self,
        ino: Ino,
        handle: Handle,
        offset: u64,
        data: &[u8],
        how: Write,
    ) -> Result<usize> {
        let _ = handle;
        self.run(Op::Write, || {
            let inode = self.inode_of(ino)?;
            let object = inode.file(self.dataset(), self.wait)?;
            self.write_pieces(&inode, &object, offset, data, how)
        })
    }

    /// Writes piece by piece, and returns the number of bytes written.
    fn write_pieces(
        &self,
        inode: &Inode,
        object: &Object,
        offset: u64,
        data: &[u8],
        how: Write,
    ) -> Result<usize> {
        let mut done = 0;
        while done < data.len() {
            let piece = &data[done..data.len().min(done + PIECE_BYTES)];
            let at = offset.saturating_add(done as u64);
            match self.unless_gone(|| self.write_piece(inode, object, at, piece, how)) {
                Ok(Written { bytes, goes_on }) => {
                    done += bytes;
                    if bytes < piece.len() && !goes_on {
                        break;
                    }
                }
                Err(error) if done == 0 => return Err(error),
                Err(_) => break,
            }
        }
        Ok(done)
    }

    /// Writes in one transaction.
    fn write_piece(
        &self,
        inode: &Inode,
        object: &Object,
        offset: u64,
        piece: &[u8],
        how: Write,
    ) -> Result<Written> {
        let at = if how.append { object.size() } else { offset };
        check_end(at, piece.len() as u64)?;
        warm(object, at, piece.len() as u64, self.wait)?;
        self.warm(inode)?;
        let tx = self.begin()?;
        let _lock = inode.lock(&tx)?;
        let at = if how.append { object.size() } else { offset };
        check_end(at, piece.len() as u64)?;
        // Only the first change may report that it would block.
        let (written, failed) = object.write_some(&tx, at, piece);
        let goes_on = failed.as_ref().is_err_and(forebay_pool::Error::is_gone);
        if written == 0 {
            return Ok(failed.map(|()| Written { bytes: 0, goes_on })?);
        }
        self.writeback_errors().clear(inode.number, at..at + written);
        let kill_priv = KillPriv { set_id: how.clear_suid, capability: how.clear_capability };
        tx.allow_wait();
        let changed = self.content_changed(&tx, inode, kill_priv);
        // The same data may be written once more, but not appended.
        changed.map_err(|error| if how.append { error.without_wait() } else { error })?;
        Ok(Written { bytes: written as usize, goes_on })
    }

    /// Makes an inode's content and attributes durable, and all names of the file system. With
    /// `data_only`, times may be left out.
    ///
    /// # Errors
    /// An error of the write. [`Io`](ErrorKind::Io) while data that
    /// [`write_back`](Self::write_back) lost has not been replaced.
    pub fn fsync(&self, ino: Ino, data_only: bool) -> Result<()> {
        self.run(Op::Fsync, || {
            let inode = self.inode_of(ino)?;
            if self.shared.options.read_only {
                // As on Linux: there is nothing to write.
                return Ok(());
            }
            self.writeback_errors().check(inode.number)?;
            self.wait.check("what is to be durable")?;
            if !data_only {
                self.flush_times(&inode)?;
            }
            self.unless_suspended(self.wait, || Ok(self.dataset().fsync(inode.number)?))
        })
    }

    /// Makes a directory durable.
    ///
    /// # Errors
    /// As [`fsync`](Self::fsync), or [`NotADirectory`](ErrorKind::NotADirectory).
    pub fn fsyncdir(&self, ino: Ino) -> Result<()> {
        self.unless_gone(|| self.directory_of(ino).map(drop))?;
        self.fsync(ino, false)
    }

    /// Prepares a change of size: checks it, reads the records at the edge, and frees what exceeds
    /// one transaction.
    pub(crate) fn prepare_resize(&self, inode: &Inode, size: u64) -> Result<()> {
        let object = inode.file(self.dataset(), self.wait)?;
        check_end(size, 0)?;
        let old = object.size();
        if size < old {
            warm(&object, size, 0, self.wait)?;
            self.free_in_steps(&object, size, old, &mut || true)?;
        }
        Ok(())
    }
}

/// # Errors
/// [`FileTooLarge`](ErrorKind::FileTooLarge).
pub(super) fn check_end(offset: u64, len: u64) -> Result<()> {
    match offset.checked_add(len) {
        Some(end) if end <= SIZE_MAX => Ok(()),
        _ => {
            let text = format!("file too large: at most {SIZE_MAX} bytes");
            Err(Error::new(ErrorKind::FileTooLarge, text))
        }
    }
}

/// Reads the records at the edges of a range, which a write replaces only in part.
pub(super) fn warm(object: &Object, offset: u64, len: u64, wait: Wait) -> Result<()> {
    let record = u64::from(object.record_bytes());
    let size = object.size();
    let end = offset.saturating_add(len);
    let mut byte = [0];
    if !offset.is_multiple_of(record) && offset - offset % record < size {
        object.with_wait(wait).read(offset - offset % record, &mut byte)?;
    }
    let last = end - end % record;
    // The last record is not needed if the write replaces all of it, or if it is also the first
    // one.
    if !end.is_multiple_of(record) && end < size && (last > offset || offset.is_multiple_of(record))
    {
        object.with_wait(wait).read(last, &mut byte)?;
    }
    Ok(())
}
