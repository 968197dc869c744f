//! Ranges of files: room, holes, copies.

use forebay_pool::Object;

use crate::error::{Error, ErrorKind, Result};
use crate::fs::FileSystem;
use crate::inode::Inode;
use crate::stats::Op;
use crate::types::{FallocateMode, Handle, Ino, Seek, Write};

use super::apply;
use super::file::{check_end, warm};

/// Copied at once.
const COPY_BYTES: usize = 1 << 20;

impl FileSystem {
    /// Does something with a range of a file, see [`FallocateMode`]. A large range is punched in steps.
    ///
    /// # Errors
    /// [`Invalid`](ErrorKind::Invalid) for an empty range, [`NoSpace`](ErrorKind::NoSpace),
    /// [`FileTooLarge`](ErrorKind::FileTooLarge), …
    pub fn fallocate(
        &self,
        ino: Ino,
        handle: Handle,
        offset: u64,
        len: u64,
        mode: FallocateMode,
    ) -> Result<()> {
        self.enter(Op::Fallocate)?;
        let _ = handle;
        let inode = self.inode_of(ino)?;
        let object = inode.file(self.dataset())?;
        if len == 0 {
            return Err(Error::new(ErrorKind::Invalid, "the range is empty"));
        }
        check_end(offset, len)?;
        self.check_writable()?;
        let end = offset + len;
        match mode {
            FallocateMode::Allocate { keep_size } => {
                self.check_room(&object, offset, len)?;
                self.extend(&inode, &object, end, keep_size)
            }
            FallocateMode::Punch => self.punch(&inode, &object, offset, end),
            FallocateMode::Zero { keep_size } => {
                self.punch(&inode, &object, offset, end)?;
                self.extend(&inode, &object, end, keep_size)
            }
        }
    }

    /// Whether there is room for a range today.
    fn check_room(&self, object: &Object, offset: u64, len: u64) -> Result<()> {
        let stats = self.pool().stats();
        // What has data already takes as much again when it is written, and gives back what it had.
        let wanted = len.min((offset + len).saturating_sub(object.size().min(offset)));
        match wanted <= stats.free_bytes + stats.deferred_bytes {
            true => Ok(()),
            false => {
                let text =
                    format!("there is no room for {len} bytes: delete something, or add a device");
                Err(Error::new(ErrorKind::NoSpace, text))
            }
        }
    }

    fn extend(&self, inode: &Inode, object: &Object, end: u64, keep_size: bool) -> Result<()> {
        self.warm(inode)?;
        let tx = self.begin()?;
        let _turn = inode.turn();
        apply(|| {
            if !keep_size && end > object.size() {
                object.truncate(&tx, end)?;
            }
            let now = self.now();
            self.change(&tx, inode, |meta| meta.changed(now))
        })
    }

    fn punch(&self, inode: &Inode, object: &Object, offset: u64, end: u64) -> Result<()> {
        warm(object, offset, end - offset)?;
        // All but what one transaction can take.
        self.free_in_steps(object, offset, end, &mut || true)?;
        self.warm(inode)?;
        let tx = self.begin_freeing()?;
        let _turn = inode.turn();
        apply(|| {
            object.punch(&tx, offset, end - offset)?;
            let now = self.now();
            self.change(&tx, inode, |meta| meta.changed(now))
        })
    }

    /// The first offset from `offset` on that has data, or that has none.
    ///
    /// # Errors
    /// [`NoSuchOffset`](ErrorKind::NoSuchOffset) if it lies behind the end, or no data follows.
    pub fn seek(&self, ino: Ino, handle: Handle, offset: u64, what: Seek) -> Result<u64> {
        self.enter(Op::Seek)?;
        let _ = handle;
        let inode = self.inode_of(ino)?;
        let object = inode.file(self.dataset())?;
        let found = match what {
            Seek::Data => object.next_data(offset)?,
            Seek::Hole => object.next_hole(offset)?,
        };
        found.ok_or_else(|| {
            Error::new(ErrorKind::NoSuchOffset, format!("nothing of the kind follows {offset}"))
        })
    }

    /// Copies from one file to another, or within one to where it does not overlap; returns how much, which is less only at the end
    /// of the first, or if something failed on the way.
    ///
    /// # Errors
    /// [`Invalid`](ErrorKind::Invalid) if the ranges overlap, and those of reading and writing.
    pub fn copy_range(
        &self,
        ino_in: Ino,
        offset_in: u64,
        ino_out: Ino,
        offset_out: u64,
        len: u64,
    ) -> Result<u64> {
        self.enter(Op::CopyRange)?;
        let source = self.inode_of(ino_in)?.file(self.dataset())?;
        let len = len.min(source.size().saturating_sub(offset_in));
        let apart = offset_in.abs_diff(offset_out) >= len;
        if ino_in == ino_out && !apart {
            return Err(Error::new(ErrorKind::Invalid, "the ranges overlap"));
        }
        self.check_writable()?;
        let mut buffer = vec![0; COPY_BYTES.min(usize::try_from(len).unwrap_or(COPY_BYTES))];
        let mut done = 0;
        while done < len {
            let part = buffer.len().min((len - done) as usize);
            let copied = source.read(offset_in + done, &mut buffer[..part]);
            let copied = copied.map_err(Error::from).and_then(|read| {
                let (bytes, to) = (&buffer[..read], offset_out.saturating_add(done));
                self.write(ino_out, Handle(ino_out.0), to, bytes, Write::default())
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
