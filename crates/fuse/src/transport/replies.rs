//! Answers, as the crate sends them.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

use fuser::{Errno, FileHandle, FopenFlags, Generation, INodeNo};

use super::convert::{attributes_of, kind_of};
use crate::transport::{
    Attributes, Created, DataReply, Dentry, DirEntry, DirReply, Kind, Opened, Position, Reply,
    Time, Usage, VALID, Written, XattrReply,
};

fn open_flags(opened: Opened) -> FopenFlags {
    if opened.cached {
        FopenFlags::FOPEN_KEEP_CACHE
    } else {
        FopenFlags::FOPEN_DIRECT_IO
            | FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES
            | FopenFlags::FOPEN_NOFLUSH
    }
}

/// An answer of the crate that has `error` and one way to say yes.
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
    ReplyAttr, Attributes, |this, it| this.attr(&it.valid(), &attributes_of(&it));
    ReplyEntry, Dentry, |this, it| match it {
        // Where the name leads is no guess, whatever the attributes are.
        Dentry::Positive(it) =>
            this.entry_with_ttls(&it.valid(), &VALID, &attributes_of(&it), Generation(it.generation)),
        Dentry::Negative => this.entry(&VALID, &attributes_of(&NEGATIVE), Generation(0)),
    };
    ReplyCreate, Created, |this, it| this.created(
        &it.attributes.valid(),
        &attributes_of(&it.attributes),
        Generation(it.attributes.generation),
        FileHandle(it.opened.handle),
        open_flags(it.opened),
    );
    ReplyWrite, Written, |this, it| this.written(it.0);
    ReplyLseek, Position, |this, it| this.offset(i64::try_from(it.0).unwrap_or(i64::MAX));
    ReplyStatfs, Usage, |this, it| this.statfs(
        it.blocks, it.free, it.available, it.files, it.files_free, it.block_bytes, it.name_max, it.block_bytes,
    );
}

/// An inode number of zero says that a name leads nowhere.
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
    blocks_estimated: false,
    block_bytes: 0,
    atime: Time { seconds: 0, nanos: 0 },
    mtime: Time { seconds: 0, nanos: 0 },
    ctime: Time { seconds: 0, nanos: 0 },
    generation: 0,
};

/// A file that was opened, and a directory: they differ in flags.
pub(super) struct FileOpened(pub(super) fuser::ReplyOpen);
pub(super) struct DirOpened(pub(super) fuser::ReplyOpen);

impl Reply<Opened> for FileOpened {
    fn ok(self, it: Opened) {
        self.0.opened(FileHandle(it.handle), open_flags(it));
    }
    fn error(self, errno: i32) {
        self.0.error(Errno::from_i32(errno));
    }
}

impl Reply<Opened> for DirOpened {
    fn ok(self, it: Opened) {
        let cached = FopenFlags::FOPEN_CACHE_DIR | FopenFlags::FOPEN_KEEP_CACHE;
        self.0.opened(FileHandle(it.handle), if it.cached { cached } else { FopenFlags::empty() });
    }
    fn error(self, errno: i32) {
        self.0.error(Errno::from_i32(errno));
    }
}

impl DataReply for fuser::ReplyData {
    fn data(self, data: &[u8]) {
        self.data(data);
    }
    fn error(self, errno: i32) {
        self.error(Errno::from_i32(errno));
    }
}

impl XattrReply for fuser::ReplyXattr {
    fn size(self, bytes: u32) {
        self.size(bytes);
    }
    fn data(self, data: &[u8]) {
        self.data(data);
    }
    fn error(self, errno: i32) {
        self.error(Errno::from_i32(errno));
    }
}

pub(super) struct Names {
    reply: fuser::ReplyDirectory,
    empty: bool,
}

impl Names {
    pub(super) fn new(reply: fuser::ReplyDirectory) -> Self {
        Self { reply, empty: true }
    }
}

impl DirReply for Names {
    fn add(&mut self, entry: &DirEntry<'_>, _attributes: Option<&Attributes>) -> bool {
        let name = OsStr::from_bytes(entry.name);
        let full = self.reply.add(INodeNo(entry.ino), entry.next, kind_of(entry.kind), name);
        self.empty &= full;
        !full
    }
    fn is_empty(&self) -> bool {
        self.empty
    }
    fn done(self) {
        self.reply.ok();
    }
    fn error(self, errno: i32) {
        self.reply.error(Errno::from_i32(errno));
    }
}

pub(super) struct NamesPlus {
    reply: fuser::ReplyDirectoryPlus,
    empty: bool,
}

impl NamesPlus {
    pub(super) fn new(reply: fuser::ReplyDirectoryPlus) -> Self {
        Self { reply, empty: true }
    }
}

impl DirReply for NamesPlus {
    fn add(&mut self, entry: &DirEntry<'_>, attributes: Option<&Attributes>) -> bool {
        // For "." and ".." the kernel takes no reference, whatever is sent. Anything else without attributes is damaged: it
        // is shown, and expires at once, so that whoever looks at it asks for it by name and gets the error.
        let nothing = Attributes { ino: entry.ino, kind: entry.kind, ..NEGATIVE };
        let valid = attributes.map_or(Duration::ZERO, Attributes::valid);
        let attributes = attributes.unwrap_or(&nothing);
        let full = self.reply.add(
            INodeNo(entry.ino),
            entry.next,
            OsStr::from_bytes(entry.name),
            &valid,
            &attributes_of(attributes),
            Generation(attributes.generation),
        );
        self.empty &= full;
        !full
    }
    fn is_empty(&self) -> bool {
        self.empty
    }
    fn done(self) {
        self.reply.ok();
    }
    fn error(self, errno: i32) {
        self.reply.error(Errno::from_i32(errno));
    }
}
