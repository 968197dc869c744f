//! Ranges of files: allocation, holes and copies.

use forebay_pool::Object;

use crate::error::{Error, ErrorKind, Result};
use crate::fs::FileSystem;
use crate::inode::Inode;
use crate::stats::Op;
use crate::types::{Caller, FallocateMode, Handle, Ino, Seek, Write};

use super::file::{check_end, warm};

/// Bytes copied at once.
const COPY_BYTES: usize = 1 << 20;

/// A range of a file, and the caller of the operation.
struct Range<'a> {
    inode: &'a Inode,
    object: &'a Object,
    offset: u64,
    end: u64,
    caller: Caller,
}

impl FileSystem {
    /// Allocates, punches or zeroes a range; see [`FallocateMode`]. A large range is changed in
    /// steps, and allocated in part if the process is killed between two of them. Unless the caller
    /// has `CAP_FSETID`, clears set-user-id, and set-group-id of a group-executable file.
    ///
    /// # Errors
    /// [`Invalid`](ErrorKind::Invalid) for an empty range, [`NoSpace`](ErrorKind::NoSpace),
    /// [`FileTooLarge`](ErrorKind::FileTooLarge), [`Interrupted`](ErrorKind::Interrupted), and
    /// others.
    pub fn fallocate(
        &self,
        ino: Ino,
        handle: Handle,
        offset: u64,
        len: u64,
        mode: FallocateMode,
        caller: Caller,
    ) -> Result<()> {
        let _ = handle;
        self.run(Op::Fallocate, || self.fallocate_once(ino, offset, len, mode, caller))
    }

    fn fallocate_once(
        &self,
        ino: Ino,
        offset: u64,
        len: u64,
        mode: FallocateMode,
        caller: Caller,
    ) -> Result<()> {
        let inode = self.inode_of(ino)?;
        let object = inode.file(self.dataset(), self.wait)?;
        if len == 0 {
            return Err(Error::new(ErrorKind::Invalid, "the range is empty"));
        }
        check_end(offset, len)?;
        self.check_writable()?;
        let range = Range { inode: &inode, object: &object, offset, end: offset + len, caller };
        match mode {
            FallocateMode::Allocate { keep_size } => {
                self.check_space(&object, offset, len)?;
                self.extend(&range, keep_size)
            }
            FallocateMode::Punch => self.punch(&range),
            FallocateMode::Zero { keep_size } => {
                // Zeroing takes two transactions. The first cannot be rolled back.
                self.wait.check("zeroing a range")?;
                self.check_space(&object, offset, len)?;
                self.punch(&range)?;
                self.extend(&range, keep_size)
            }
        }
    }

    /// Checks that there is currently enough space for the holes of the range. Data is not counted,
    /// as an overwrite gives back what it replaces. That is less than it may need if the data is
    /// compressed or ends in zeros that are not stored.
    fn check_space(&self, object: &Object, offset: u64, len: u64) -> Result<()> {
        let fits = |wanted| wanted <= self.pool().usage().available_bytes;
        let holes = || object.with_wait(self.wait).hole_bytes(offset, len);
        if fits(len) || fits(holes()?) {
            return Ok(());
        }
        // Unwritten changes reserve more space than they will use.
        self.wait.check("space freed by a transaction group")?;
        self.unless_suspended(self.wait, || Ok(self.pool().sync()?))?;
        let wanted = holes()?;
        let available = self.pool().usage().available_bytes;
        if wanted <= available {
            return Ok(());
        }
        let text = format!(
            "the holes of the range need {wanted} bytes, and {available} are available: delete \
             files or add a device"
        );
        Err(Error::new(ErrorKind::NoSpace, text))
    }

    fn extend(&self, range: &Range<'_>, keep_size: bool) -> Result<()> {
        let Range { inode, object, offset, end, caller } = *range;
        let mut at = offset;
        loop {
            self.warm(inode)?;
            let tx = self.begin()?;
            let lock = inode.lock(&tx)?;
            // Only the first change may report that it would block.
            at += object.preallocate_some(&tx, at, end - at)?;
            if at < end {
                drop(lock);
                drop(tx);
                self.check_killed()?;
                continue;
            }
            tx.allow_wait();
            if !keep_size && end > object.size() {
                object.truncate(&tx, end)?;
            }
            return self.content_changed(&tx, inode, self.kill_priv_by(inode, caller));
        }
    }

    fn punch(&self, range: &Range<'_>) -> Result<()> {
        let Range { inode, object, offset, end, caller } = *range;
        warm(object, offset, end - offset, self.wait)?;
        // All but one transaction's worth. Goes on if the process is killed, as the last step notes
        // the change in the inode. The data that exists bounds the number of steps.
        self.free_in_steps(object, offset, end, &mut || true)?;
        self.warm(inode)?;
        let tx = self.begin_freeing()?;
        let _lock = inode.lock(&tx)?;
        object.punch(&tx, offset, end - offset)?;
        self.writeback_errors().clear(inode.number, offset..end);
        tx.allow_wait();
        self.content_changed(&tx, inode, self.kill_priv_by(inode, caller))
    }

    /// Returns the first offset at or after `offset` with data, or in a hole.
    ///
    /// # Errors
    /// [`NoSuchOffset`](ErrorKind::NoSuchOffset) if `offset` is past the end, or no data follows.
    pub fn seek(&self, ino: Ino, handle: Handle, offset: u64, what: Seek) -> Result<u64> {
        let _ = handle;
        let found = self.run(Op::Seek, || {
            let inode = self.inode_of(ino)?;
            let object = inode.file(self.dataset(), self.wait)?;
            let object = object.with_wait(self.wait);
            Ok(match what {
                Seek::Data => object.next_data(offset)?,
                Seek::Hole => object.next_hole(offset)?,
            })
        })?;
        found.ok_or_else(|| {
            Error::new(ErrorKind::NoSuchOffset, format!("no data or hole after offset {offset}"))
        })
    }

    /// Copies between files, or within a file to a range that does not overlap. Returns the number
    /// of bytes copied. That is less than `len` only at the end of the source or after an error.
    /// Clears set-user-id as [`fallocate`](Self::fallocate) does.
    ///
    /// # Errors
    /// [`Invalid`](ErrorKind::Invalid) if the ranges overlap, or an error of reading or writing.
    pub fn copy_range(
        &self,
        ino_in: Ino,
        offset_in: u64,
        ino_out: Ino,
        offset_out: u64,
        len: u64,
        caller: Caller,
    ) -> Result<u64> {
        self.run(Op::CopyRange, || {
            self.copy_range_once((ino_in, offset_in), (ino_out, offset_out), len, caller)
        })
    }

    fn copy_range_once(
        &self,
        (ino_in, offset_in): (Ino, u64),
        (ino_out, offset_out): (Ino, u64),
        len: u64,
        caller: Caller,
    ) -> Result<u64> {
        let source = self.inode_of(ino_in)?.file(self.dataset(), self.wait)?;
        let len = len.min(source.size().saturating_sub(offset_in));
        let apart = offset_in.abs_diff(offset_out) >= len;
        if ino_in == ino_out && !apart {
            return Err(Error::new(ErrorKind::Invalid, "the ranges overlap"));
        }
        self.check_writable()?;
        let clear_suid = (!self.keeps_set_id(caller)).then_some(caller);
        let how = Write { clear_suid, clear_capability: true, append: false };
        let mut buffer = vec![0; COPY_BYTES.min(usize::try_from(len).unwrap_or(COPY_BYTES))];
        let mut done = 0;
        while done < len {
            let part = buffer.len().min((len - done) as usize);
            let copied = source.with_wait(self.wait).read(offset_in + done, &mut buffer[..part]);
            let copied = copied.map_err(Error::from).and_then(|read| {
                let (bytes, to) = (&buffer[..read], offset_out.saturating_add(done));
                self.write(ino_out, Handle(ino_out.0), to, bytes, how)
            });
            match copied {
                Ok(0) => break,
                Ok(written) => done += written as u64,
                Err(error) if done == 0 => return Err(error),
                Err(_) => break,
            }
        }
        Ok(done)
    }
}
