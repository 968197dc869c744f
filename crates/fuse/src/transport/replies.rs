//! Replies to the kernel, in the encoding of the crate `fuser`.
//!
//! A reply is sent once. One that is dropped unsent answers the request with `EIO`. Its timer is
//! dropped after it, so that a slow log does not hold it up.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

use fuser::{Errno, FileHandle, FopenFlags, Generation, INodeNo};

use super::convert::{attributes_of, kind_of};
use super::{
    Attributes, Created, Dentry, DirEntry, Kind, Opened, Position, Reply, Time, Usage, VALID,
    Written,
};
use crate::latency::Timer;

/// A reply that ends the measurement of its request.
pub(super) struct Timed<R> {
    pub(super) reply: R,
    pub(super) timer: Timer,
}

impl<T, R: Reply<T>> Reply<T> for Timed<R> {
    fn ok(mut self, value: T) {
        self.timer.record();
        self.reply.ok(value);
    }

    fn error(mut self, errno: i32) {
        self.timer.record();
        self.reply.error(errno);
    }
}

/// With `page_cache`, the kernel caches content even if the server does not ask for it.
fn open_flags(opened: Opened, page_cache: bool) -> FopenFlags {
    if opened.cached || page_cache {
        FopenFlags::FOPEN_KEEP_CACHE
    } else {
        FopenFlags::FOPEN_DIRECT_IO
            | FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES
            | FopenFlags::FOPEN_NOFLUSH
    }
}

/// Implements [`Reply`] for reply types of `fuser` that take one kind of value.
macro_rules! replies {
    ($($reply:ident, $value:ty, |$this:ident, $it:ident| $ok:expr;)*) => { $(
        impl Reply<$value> for fuser::$reply {
            fn ok(self, $it: $value) {
                let $this = self;
                $ok;
            }
            fn error(self, errno: i32) {
                self.error(Errno::from_i32(errno));
            }
        }
    )* };
}

replies! {
    ReplyEmpty, (), |this, _nothing| this.ok();
    ReplyAttr, Attributes, |this, it| this.attr(&it.valid, &attributes_of(&it));
    ReplyEntry, Dentry, |this, it| match it {
        // The entry stays valid even if its attributes are estimates.
        Dentry::Positive(it) =>
            this.entry_with_ttls(&it.valid, &VALID, &attributes_of(&it), Generation(it.generation)),
        Dentry::PositiveFor(it, time) =>
            this.entry_with_ttls(&it.valid, &time, &attributes_of(&it), Generation(it.generation)),
        Dentry::Negative => this.entry(&VALID, &attributes_of(&NEGATIVE), Generation(0)),
        Dentry::NegativeFor(time) => this.entry(&time, &attributes_of(&NEGATIVE), Generation(0)),
    };
    ReplyWrite, Written, |this, it| this.written(it.0);
    ReplyLseek, Position, |this, it| this.offset(i64::try_from(it.0).unwrap_or(i64::MAX));
    ReplyStatfs, Usage, |this, it| this.statfs(
        it.blocks, it.free, it.available, it.files, it.files_free, it.block_bytes, it.name_max, it.block_bytes,
    );
}

/// Inode number zero makes the kernel cache a negative dentry.
const NEGATIVE: Attributes = Attributes {
    ino: 0,
    kind: Kind::File,
    mode: 0,
    nlink: 0,
    uid: 0,
    gid: 0,
    rdev: 0,
    size: 0,
    blocks: 0,
    valid: Duration::ZERO,
    block_bytes: 0,
    atime: Time { seconds: 0, nanos: 0 },
    mtime: Time { seconds: 0, nanos: 0 },
    ctime: Time { seconds: 0, nanos: 0 },
    generation: 0,
};

/// Replies to `create`.
pub(super) struct FileCreated {
    pub(super) reply: fuser::ReplyCreate,
    /// See [`open_flags`].
    pub(super) page_cache: bool,
}

impl Reply<Created> for FileCreated {
    fn ok(self, it: Created) {
        self.reply.created(
            &it.attributes.valid,
            &attributes_of(&it.attributes),
            Generation(it.attributes.generation),
            FileHandle(it.opened.handle),
            open_flags(it.opened, self.page_cache),
        );
    }

    fn error(self, errno: i32) {
        self.reply.error(Errno::from_i32(errno));
    }
}

/// Replies to `open`.
pub(super) struct FileOpened {
    pub(super) reply: fuser::ReplyOpen,
    /// See [`open_flags`].
    pub(super) page_cache: bool,
}

impl Reply<Opened> for FileOpened {
    fn ok(self, it: Opened) {
        self.reply.opened(FileHandle(it.handle), open_flags(it, self.page_cache));
    }

    fn error(self, errno: i32) {
        self.reply.error(Errno::from_i32(errno));
    }
}

/// Replies to `opendir`.
pub(super) struct DirOpened(pub(super) fuser::ReplyOpen);

impl Reply<Opened> for DirOpened {
    fn ok(self, it: Opened) {
        let cached = FopenFlags::FOPEN_CACHE_DIR | FopenFlags::FOPEN_KEEP_CACHE;
        self.0.opened(FileHandle(it.handle), if it.cached { cached } else { FopenFlags::empty() });
    }
    fn error(self, errno: i32) {
        self.0.error(Errno::from_i32(errno));
    }
}

/// Replies with bytes, without copying them.
pub(crate) struct DataReply {
    pub(super) reply: fuser::ReplyData,
    pub(super) timer: Timer,
}

impl DataReply {
    /// No thread works on the request any more: its answer comes when reads of devices end.
    pub(crate) fn fetching(&mut self) {
        self.timer.fetching();
    }

    pub(crate) fn data(mut self, data: &[u8]) {
        self.timer.record();
        self.reply.data(data);
    }

    pub(crate) fn error(mut self, errno: i32) {
        self.timer.record();
        self.reply.error(Errno::from_i32(errno));
    }
}

/// Replies to `getxattr` and `listxattr`: with bytes, or with their length if the kernel asked for
/// it.
pub(crate) struct XattrReply {
    pub(super) reply: fuser::ReplyXattr,
    pub(super) timer: Timer,
}

impl XattrReply {
    pub(crate) fn size(mut self, bytes: u32) {
        self.timer.record();
        self.reply.size(bytes);
    }

    pub(crate) fn data(mut self, data: &[u8]) {
        self.timer.record();
        self.reply.data(data);
    }

    pub(crate) fn error(mut self, errno: i32) {
        self.timer.record();
        self.reply.error(Errno::from_i32(errno));
    }
}

enum DirBuffer {
    Names(fuser::ReplyDirectory),
    WithAttributes(fuser::ReplyDirectoryPlus),
}

/// Replies to `readdir` and `readdirplus`. The buffer has the size that the kernel asked for.
pub(crate) struct DirReply {
    buffer: DirBuffer,
    empty: bool,
    timer: Timer,
}

impl DirReply {
    pub(super) fn names(reply: fuser::ReplyDirectory, timer: Timer) -> Self {
        Self { buffer: DirBuffer::Names(reply), empty: true, timer }
    }

    pub(super) fn with_attributes(reply: fuser::ReplyDirectoryPlus, timer: Timer) -> Self {
        Self { buffer: DirBuffer::WithAttributes(reply), empty: true, timer }
    }

    /// Appends an entry. Returns false if it does not fit. `readdir` ignores the attributes.
    pub(crate) fn add(&mut self, entry: &DirEntry<'_>, attributes: Option<&Attributes>) -> bool {
        let (ino, name) = (INodeNo(entry.ino), OsStr::from_bytes(entry.name));
        let full = match &mut self.buffer {
            DirBuffer::Names(reply) => reply.add(ino, entry.next, kind_of(entry.kind), name),
            DirBuffer::WithAttributes(reply) => {
                // The kernel takes no reference for "." and "..". Any other entry without
                // attributes is damaged. It expires at once, so that using it fails with the error.
                let unknown = Attributes { ino: entry.ino, kind: entry.kind, ..NEGATIVE };
                let valid = attributes.map_or(Duration::ZERO, |attributes| attributes.valid);
                let attributes = attributes.unwrap_or(&unknown);
                let generation = Generation(attributes.generation);
                let attributes = attributes_of(attributes);
                reply.add(ino, entry.next, name, &valid, &attributes, generation)
            }
        };
        self.empty &= full;
        !full
    }

    /// Whether no entry was added.
    pub(crate) fn is_empty(&self) -> bool {
        self.empty
    }

    /// Sends the entries.
    pub(crate) fn done(mut self) {
        self.timer.record();
        match self.buffer {
            DirBuffer::Names(reply) => reply.ok(),
            DirBuffer::WithAttributes(reply) => reply.ok(),
        }
    }

    pub(crate) fn error(mut self, errno: i32) {
        self.timer.record();
        let errno = Errno::from_i32(errno);
        match self.buffer {
            DirBuffer::Names(reply) => reply.error(errno),
            DirBuffer::WithAttributes(reply) => reply.error(errno),
        }
    }
}
