//! The transport over the crate `fuser`: the only module that names it.
//!
//! Each thread has a descriptor of `/dev/fuse` of its own (`FUSE_DEV_IOC_CLONE`), so a request is answered where it
//! was taken, if it need not wait. Answers that went to another thread are written through the descriptor that they came by.
//!
//! # Departures that the crate forces
//!
//! 1. It reads times before 1970 with the nanoseconds counted the wrong way; [`time_of`] undoes that.
//! 2. In answers to `readdirplus` it uses one number for the entry and for what the kernel refers to, so an entry without attributes cannot be
//!    sent: [`FolderAnswer::add`] refuses it, as if there were no room.
//! 3. It does not show whether an `open` that truncates, or a `setattr`, has to drop set-user-id bits (`FUSE_HANDLE_KILLPRIV_V2`); the server goes by the
//!    caller instead. Writes do show it.
//! 4. It answers `interrupt` with `ENOSYS`: a request that waits cannot be interrupted.
//!
//! # Locking
//!
//! None of its own.

use std::ffi::OsStr;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::{Duration, SystemTime};

use forebay_base::sync::Arc;
use fuser::{
    Errno, FileAttr, FileHandle, FileType, FopenFlags, Generation, INodeNo, InitFlags,
    KernelConfig, LockOwner, OpenFlags, RenameFlags, Request, SessionACL, TimeOrNow, WriteFlags,
};

use super::{
    Answer, Attributes, Caller, Content, CopyRange, Created, DataAnswer, FolderAnswer, FolderEntry,
    Forgetter, Found, Kind, NewNode, Opened, Position, Server, SetAttributes, SetTime, SizedAnswer,
    Time, Usage, VALID, Written,
};
use crate::counters::{MountCounters, Op};
use crate::options::MountOptions;

/// A session that has shaken hands with the kernel and takes no requests yet.
pub(crate) struct Session<S: Server> {
    inner: fuser::Session<Glue<S>>,
    server: Arc<S>,
}

/// Shakes hands with the kernel over `device`, which is attached to a mount point already.
pub(crate) fn start<S: Server>(
    device: OwnedFd,
    server: Arc<S>,
    counters: Arc<MountCounters>,
    options: &MountOptions,
) -> io::Result<Session<S>> {
    let mut config = fuser::Config::default();
    config.n_threads = Some(options.threads);
    config.clone_fd = options.threads > 1;
    // Who may come in is the kernel's to say, by `allow_other`; the crate's own check would say it again.
    let glue = Glue { server: server.clone(), counters, options: options.clone() };
    let inner = fuser::Session::from_fd(glue, device, SessionACL::All, config)?;
    Ok(Session { inner, server })
}

impl<S: Server> Session<S> {
    /// Takes requests, on threads of its own, until the kernel ends it; returns then.
    pub(crate) fn run(self) -> io::Result<()> {
        self.server.started(Box::new(KernelNames(self.inner.notifier())));
        let end = self.inner.run();
        self.server.ended();
        end
    }
}

struct KernelNames(fuser::Notifier);

impl Forgetter for KernelNames {
    fn forget_name(&self, parent: u64, name: &[u8]) -> bool {
        match self.0.inval_entry(INodeNo(parent), OsStr::from_bytes(name)) {
            Ok(()) => true,
            // In use, or another request about it runs: not now, but the connection stands.
            Err(error) => {
                !matches!(error.raw_os_error(), Some(libc::ENODEV | libc::ENOTCONN | libc::EBADF))
            }
        }
    }
}

struct Glue<S> {
    server: Arc<S>,
    counters: Arc<MountCounters>,
    options: MountOptions,
}

impl<S> Glue<S> {
    fn count(&self, op: Op) {
        self.counters.add(MountCounters::REQUESTS, op as usize, 1);
    }
}

/// What the kernel is asked for, if it can.
fn wanted(options: &MountOptions) -> InitFlags {
    let mut flags = InitFlags::FUSE_ASYNC_READ
        | InitFlags::FUSE_ATOMIC_O_TRUNC
        | InitFlags::FUSE_BIG_WRITES
        | InitFlags::FUSE_MAX_PAGES
        | InitFlags::FUSE_PARALLEL_DIROPS
        | InitFlags::FUSE_DO_READDIRPLUS
        | InitFlags::FUSE_READDIRPLUS_AUTO
        | InitFlags::FUSE_ASYNC_DIO
        | InitFlags::FUSE_HANDLE_KILLPRIV_V2
        | InitFlags::FUSE_CACHE_SYMLINKS
        | InitFlags::FUSE_EXPLICIT_INVAL_DATA
        | InitFlags::FUSE_NO_EXPORT_SUPPORT;
    if options.kernel_cache {
        flags |= InitFlags::FUSE_WRITEBACK_CACHE;
    } else {
        flags |= InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP;
    }
    flags
}

fn time_of(time: SystemTime) -> Time {
    match time.duration_since(SystemTime::UNIX_EPOCH) {
        Ok(after) => Time {
            seconds: i64::try_from(after.as_secs()).unwrap_or(i64::MAX),
            nanos: after.subsec_nanos(),
        },
        // The crate makes (-s, n) into s + n before 1970, so seconds and nanoseconds come apart again as they came.
        Err(before) => {
            let before = before.duration();
            Time {
                seconds: 0i64.saturating_sub_unsigned(before.as_secs()),
                nanos: before.subsec_nanos(),
            }
        }
    }
}

fn system_time(time: Time) -> SystemTime {
    let nanos = Duration::from_nanos(u64::from(time.nanos));
    let whole = Duration::from_secs(time.seconds.unsigned_abs());
    let epoch = SystemTime::UNIX_EPOCH;
    let seconds =
        if time.seconds < 0 { epoch.checked_sub(whole) } else { epoch.checked_add(whole) };
    seconds.and_then(|seconds| seconds.checked_add(nanos)).unwrap_or(epoch)
}

fn set_time(time: TimeOrNow) -> SetTime {
    match time {
        TimeOrNow::Now => SetTime::Now,
        TimeOrNow::SpecificTime(time) => SetTime::At(time_of(time)),
    }
}

fn kind_of(kind: Kind) -> FileType {
    match kind {
        Kind::File => FileType::RegularFile,
        Kind::Folder => FileType::Directory,
        Kind::Symlink => FileType::Symlink,
        Kind::Fifo => FileType::NamedPipe,
        Kind::Socket => FileType::Socket,
        Kind::CharDevice => FileType::CharDevice,
        Kind::BlockDevice => FileType::BlockDevice,
    }
}

/// The kind that a mode says, as `mknod` has it.
fn kind_of_mode(mode: u32) -> Option<Kind> {
    Some(match mode & libc::S_IFMT {
        0 | libc::S_IFREG => Kind::File,
        libc::S_IFIFO => Kind::Fifo,
        libc::S_IFSOCK => Kind::Socket,
        libc::S_IFCHR => Kind::CharDevice,
        libc::S_IFBLK => Kind::BlockDevice,
        _ => return None,
    })
}

fn permissions(mode: u32) -> u16 {
    (mode & 0o7777) as u16
}

fn attributes_of(a: &Attributes) -> FileAttr {
    FileAttr {
        ino: INodeNo(a.ino),
        size: a.size,
        blocks: a.blocks,
        atime: system_time(a.atime),
        mtime: system_time(a.mtime),
        ctime: system_time(a.ctime),
        crtime: SystemTime::UNIX_EPOCH,
        kind: kind_of(a.kind),
        perm: a.mode,
        nlink: a.nlink,
        uid: a.uid,
        gid: a.gid,
        rdev: a.rdev,
        blksize: a.block_bytes,
        flags: 0,
    }
}

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
macro_rules! answers {
    ($($reply:ident, $value:ty, |$this:ident, $it:ident| $ok:expr;)*) => { $(
        impl Answer<$value> for fuser::$reply {
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

answers! {
    ReplyEmpty, (), |this, _nothing| this.ok();
    ReplyAttr, Attributes, |this, it| this.attr(&VALID, &attributes_of(&it));
    ReplyEntry, Found, |this, it| match it {
        Found::There(it) => this.entry(&VALID, &attributes_of(&it), Generation(it.generation)),
        Found::Absent => this.entry(&VALID, &attributes_of(&NOTHING), Generation(0)),
    };
    ReplyCreate, Created, |this, it| this.created(
        &VALID,
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
const NOTHING: Attributes = Attributes {
    ino: 0,
    kind: Kind::File,
    mode: 0,
    nlink: 0,
    uid: 0,
    gid: 0,
    rdev: 0,
    size: 0,
    blocks: 0,
    block_bytes: 0,
    atime: Time { seconds: 0, nanos: 0 },
    mtime: Time { seconds: 0, nanos: 0 },
    ctime: Time { seconds: 0, nanos: 0 },
    generation: 0,
};

/// A file that was opened, and a folder: they differ in flags.
struct FileOpened(fuser::ReplyOpen);
struct FolderOpened(fuser::ReplyOpen);

impl Answer<Opened> for FileOpened {
    fn ok(self, it: Opened) {
        self.0.opened(FileHandle(it.handle), open_flags(it));
    }
    fn error(self, errno: i32) {
        self.0.error(Errno::from_i32(errno));
    }
}

impl Answer<Opened> for FolderOpened {
    fn ok(self, it: Opened) {
        let cached = FopenFlags::FOPEN_CACHE_DIR | FopenFlags::FOPEN_KEEP_CACHE;
        self.0.opened(FileHandle(it.handle), if it.cached { cached } else { FopenFlags::empty() });
    }
    fn error(self, errno: i32) {
        self.0.error(Errno::from_i32(errno));
    }
}

impl DataAnswer for fuser::ReplyData {
    fn data(self, data: &[u8]) {
        self.data(data);
    }
    fn error(self, errno: i32) {
        self.error(Errno::from_i32(errno));
    }
}

impl SizedAnswer for fuser::ReplyXattr {
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

struct Names {
    reply: fuser::ReplyDirectory,
    empty: bool,
}

impl FolderAnswer for Names {
    fn add(&mut self, entry: &FolderEntry<'_>, _attributes: Option<&Attributes>) -> bool {
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

struct NamesPlus {
    reply: fuser::ReplyDirectoryPlus,
    empty: bool,
}

impl FolderAnswer for NamesPlus {
    fn add(&mut self, entry: &FolderEntry<'_>, attributes: Option<&Attributes>) -> bool {
        // The kernel takes no reference for these two, whatever is sent; so no attributes are needed.
        let dots = Attributes { ino: entry.ino, kind: entry.kind, ..NOTHING };
        let is_dots = matches!(entry.name, b"." | b"..");
        let Some(attributes) = attributes.or(is_dots.then_some(&dots)) else { return false };
        let full = self.reply.add(
            INodeNo(entry.ino),
            entry.next,
            OsStr::from_bytes(entry.name),
            &VALID,
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

fn caller(request: &Request) -> Caller {
    Caller { uid: request.uid(), gid: request.gid() }
}

#[allow(clippy::too_many_arguments, reason = "the crate's trait has them")]
impl<S: Server> fuser::Filesystem for Glue<S> {
    fn init(&mut self, _request: &Request, config: &mut KernelConfig) -> io::Result<()> {
        let there = config.capabilities();
        // Asking for what is there cannot be refused.
        let _ = config.add_capabilities(wanted(&self.options) & there);
        let _ = config.set_max_write(self.options.max_write_bytes);
        // The kernel offers what it would do by itself; more is set where the mount is.
        if let Err(most) = config.set_max_readahead(self.options.read_ahead_bytes) {
            let _ = config.set_max_readahead(most);
        }
        let _ = config.set_max_background(self.options.max_background);
        let _ = config.set_time_granularity(Duration::from_nanos(1));
        Ok(())
    }

    fn lookup(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: fuser::ReplyEntry) {
        self.count(Op::Lookup);
        self.server.lookup(parent.0, name.as_bytes(), reply);
    }

    fn forget(&self, _request: &Request, ino: INodeNo, count: u64) {
        self.count(Op::Forget);
        self.server.forget(ino.0, count);
    }

    fn getattr(
        &self,
        _request: &Request,
        ino: INodeNo,
        _handle: Option<FileHandle>,
        reply: fuser::ReplyAttr,
    ) {
        self.count(Op::Getattr);
        self.server.getattr(ino.0, reply);
    }

    fn setattr(
        &self,
        request: &Request,
        ino: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        ctime: Option<SystemTime>,
        _handle: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<fuser::BsdFileFlags>,
        reply: fuser::ReplyAttr,
    ) {
        self.count(Op::Setattr);
        let set = SetAttributes {
            mode: mode.map(permissions),
            uid,
            gid,
            size,
            atime: atime.map(set_time),
            mtime: mtime.map(set_time),
            ctime: ctime.map(time_of),
        };
        self.server.setattr(caller(request), ino.0, set, reply);
    }

    fn readlink(&self, _request: &Request, ino: INodeNo, reply: fuser::ReplyData) {
        self.count(Op::Readlink);
        self.server.readlink(ino.0, reply);
    }

    fn mknod(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        rdev: u32,
        reply: fuser::ReplyEntry,
    ) {
        self.count(Op::Make);
        let Some(kind) = kind_of_mode(mode) else { return reply.error(Errno::EINVAL) };
        let node = NewNode { kind, mode: permissions(mode), rdev, target: None };
        self.server.make(caller(request), parent.0, name.as_bytes(), node, reply);
    }

    fn mkdir(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        reply: fuser::ReplyEntry,
    ) {
        self.count(Op::Make);
        let node = NewNode { kind: Kind::Folder, mode: permissions(mode), rdev: 0, target: None };
        self.server.make(caller(request), parent.0, name.as_bytes(), node, reply);
    }

    fn symlink(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        target: &Path,
        reply: fuser::ReplyEntry,
    ) {
        self.count(Op::Make);
        let target = Some(target.as_os_str().as_bytes());
        let node = NewNode { kind: Kind::Symlink, mode: 0o777, rdev: 0, target };
        self.server.make(caller(request), parent.0, name.as_bytes(), node, reply);
    }

    fn unlink(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: fuser::ReplyEmpty) {
        self.count(Op::Unlink);
        self.server.unlink(parent.0, name.as_bytes(), reply);
    }

    fn rmdir(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: fuser::ReplyEmpty) {
        self.count(Op::Rmdir);
        self.server.rmdir(parent.0, name.as_bytes(), reply);
    }

    fn rename(
        &self,
        _request: &Request,
        parent: INodeNo,
        name: &OsStr,
        new_parent: INodeNo,
        new_name: &OsStr,
        flags: RenameFlags,
        reply: fuser::ReplyEmpty,
    ) {
        self.count(Op::Rename);
        let (from, to) = ((parent.0, name.as_bytes()), (new_parent.0, new_name.as_bytes()));
        self.server.rename(from, to, flags.bits(), reply);
    }

    fn link(
        &self,
        _request: &Request,
        ino: INodeNo,
        parent: INodeNo,
        name: &OsStr,
        reply: fuser::ReplyEntry,
    ) {
        self.count(Op::Link);
        self.server.link(ino.0, parent.0, name.as_bytes(), reply);
    }

    fn create(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        _flags: i32,
        reply: fuser::ReplyCreate,
    ) {
        self.count(Op::Create);
        self.server.create(caller(request), parent.0, name.as_bytes(), permissions(mode), reply);
    }

    fn open(&self, request: &Request, ino: INodeNo, flags: OpenFlags, reply: fuser::ReplyOpen) {
        self.count(Op::Open);
        let truncate = flags.0 & libc::O_TRUNC != 0;
        self.server.open(caller(request), ino.0, truncate, FileOpened(reply));
    }

    fn release(
        &self,
        _request: &Request,
        ino: INodeNo,
        handle: FileHandle,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        _flush: bool,
        reply: fuser::ReplyEmpty,
    ) {
        self.count(Op::Release);
        self.server.release(ino.0, handle.0, reply);
    }

    fn flush(
        &self,
        _request: &Request,
        _ino: INodeNo,
        _handle: FileHandle,
        _owner: LockOwner,
        reply: fuser::ReplyEmpty,
    ) {
        // A close has nothing to do here; the kernel does not ask again.
        reply.error(Errno::ENOSYS);
    }

    fn read(
        &self,
        _request: &Request,
        ino: INodeNo,
        handle: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: fuser::ReplyData,
    ) {
        let shard = self.counters.shard();
        shard.add(MountCounters::REQUESTS, Op::Read as usize, 1);
        shard.add(MountCounters::READ_BYTES, 0, u64::from(size));
        self.server.read(ino.0, handle.0, offset, size, reply);
    }

    fn write(
        &self,
        _request: &Request,
        ino: INodeNo,
        handle: FileHandle,
        offset: u64,
        data: &[u8],
        write_flags: WriteFlags,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: fuser::ReplyWrite,
    ) {
        let shard = self.counters.shard();
        shard.add(MountCounters::REQUESTS, Op::Write as usize, 1);
        shard.add(MountCounters::WRITE_BYTES, 0, data.len() as u64);
        let content = Content {
            offset,
            data,
            drops_privileges: write_flags.contains(WriteFlags::FUSE_WRITE_KILL_SUIDGID),
            from_cache: write_flags.contains(WriteFlags::FUSE_WRITE_CACHE),
        };
        self.server.write(ino.0, handle.0, content, reply);
    }

    fn fsync(
        &self,
        _request: &Request,
        ino: INodeNo,
        _handle: FileHandle,
        data_only: bool,
        reply: fuser::ReplyEmpty,
    ) {
        self.count(Op::Fsync);
        self.server.fsync(ino.0, data_only, reply);
    }

    fn opendir(
        &self,
        _request: &Request,
        ino: INodeNo,
        _flags: OpenFlags,
        reply: fuser::ReplyOpen,
    ) {
        self.count(Op::Opendir);
        self.server.opendir(ino.0, FolderOpened(reply));
    }

    fn readdir(
        &self,
        _request: &Request,
        ino: INodeNo,
        handle: FileHandle,
        from: u64,
        reply: fuser::ReplyDirectory,
    ) {
        self.count(Op::Readdir);
        self.server.readdir(ino.0, handle.0, from, Names { reply, empty: true });
    }

    fn readdirplus(
        &self,
        _request: &Request,
        ino: INodeNo,
        handle: FileHandle,
        from: u64,
        reply: fuser::ReplyDirectoryPlus,
    ) {
        self.count(Op::Readdir);
        self.server.readdirplus(ino.0, handle.0, from, NamesPlus { reply, empty: true });
    }

    fn releasedir(
        &self,
        _request: &Request,
        ino: INodeNo,
        handle: FileHandle,
        _flags: OpenFlags,
        reply: fuser::ReplyEmpty,
    ) {
        self.count(Op::Releasedir);
        self.server.releasedir(ino.0, handle.0, reply);
    }

    fn fsyncdir(
        &self,
        _request: &Request,
        ino: INodeNo,
        _handle: FileHandle,
        _data_only: bool,
        reply: fuser::ReplyEmpty,
    ) {
        self.count(Op::Fsync);
        self.server.fsyncdir(ino.0, reply);
    }

    fn statfs(&self, _request: &Request, _ino: INodeNo, reply: fuser::ReplyStatfs) {
        self.count(Op::Statfs);
        self.server.statfs(reply);
    }

    fn setxattr(
        &self,
        _request: &Request,
        ino: INodeNo,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        _position: u32,
        reply: fuser::ReplyEmpty,
    ) {
        self.count(Op::Xattr);
        self.server.setxattr(ino.0, name.as_bytes(), value, flags, reply);
    }

    fn getxattr(
        &self,
        _request: &Request,
        ino: INodeNo,
        name: &OsStr,
        size: u32,
        reply: fuser::ReplyXattr,
    ) {
        self.count(Op::Xattr);
        self.server.getxattr(ino.0, name.as_bytes(), size, reply);
    }

    fn listxattr(&self, _request: &Request, ino: INodeNo, size: u32, reply: fuser::ReplyXattr) {
        self.count(Op::Xattr);
        self.server.listxattr(ino.0, size, reply);
    }

    fn removexattr(
        &self,
        _request: &Request,
        ino: INodeNo,
        name: &OsStr,
        reply: fuser::ReplyEmpty,
    ) {
        self.count(Op::Xattr);
        self.server.removexattr(ino.0, name.as_bytes(), reply);
    }

    fn access(
        &self,
        _request: &Request,
        _ino: INodeNo,
        _mask: fuser::AccessFlags,
        reply: fuser::ReplyEmpty,
    ) {
        // Permissions are the kernel's, which therefore does not ask.
        reply.error(Errno::ENOSYS);
    }

    fn fallocate(
        &self,
        _request: &Request,
        ino: INodeNo,
        handle: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: fuser::ReplyEmpty,
    ) {
        self.count(Op::Fallocate);
        self.server.fallocate(ino.0, handle.0, (offset, length), mode, reply);
    }

    fn lseek(
        &self,
        _request: &Request,
        ino: INodeNo,
        handle: FileHandle,
        offset: i64,
        whence: i32,
        reply: fuser::ReplyLseek,
    ) {
        self.count(Op::Seek);
        match u64::try_from(offset) {
            Ok(offset) => self.server.seek(ino.0, handle.0, offset, whence, reply),
            Err(_) => reply.error(Errno::ENXIO),
        }
    }

    fn copy_file_range(
        &self,
        _request: &Request,
        from: INodeNo,
        _from_handle: FileHandle,
        from_offset: u64,
        to: INodeNo,
        _to_handle: FileHandle,
        to_offset: u64,
        len: u64,
        _flags: fuser::CopyFileRangeFlags,
        reply: fuser::ReplyWrite,
    ) {
        self.count(Op::Copy);
        self.server.copy(CopyRange { from: from.0, from_offset, to: to.0, to_offset, len }, reply);
    }

    fn bmap(
        &self,
        _request: &Request,
        _ino: INodeNo,
        _bytes: u32,
        _index: u64,
        reply: fuser::ReplyBmap,
    ) {
        reply.error(Errno::ENOSYS);
    }

    fn ioctl(
        &self,
        _request: &Request,
        _ino: INodeNo,
        _handle: FileHandle,
        _flags: fuser::IoctlFlags,
        _command: u32,
        _data: &[u8],
        _room: u32,
        reply: fuser::ReplyIoctl,
    ) {
        reply.error(Errno::ENOTTY);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the crate makes of a time that the kernel sends.
    fn as_the_crate_reads(seconds: i64, nanos: u32) -> SystemTime {
        let whole = Duration::new(seconds.unsigned_abs(), nanos);
        if seconds >= 0 { SystemTime::UNIX_EPOCH + whole } else { SystemTime::UNIX_EPOCH - whole }
    }

    #[test]
    fn times_pass_through_in_both_directions() {
        for (seconds, nanos) in
            [(0, 0), (1, 5), (-1, 0), (-1, 1), (-2, 999_999_999), (1 << 40, 7), (-(1 << 40), 7)]
        {
            let time = Time { seconds, nanos };
            assert_eq!(time_of(as_the_crate_reads(seconds, nanos)), time);
            let out = system_time(time);
            let back = match out.duration_since(SystemTime::UNIX_EPOCH) {
                Ok(after) => {
                    i128::from(after.as_secs()) * 1_000_000_000 + i128::from(after.subsec_nanos())
                }
                Err(before) => -(before.duration().as_nanos() as i128),
            };
            assert_eq!(back, i128::from(seconds) * 1_000_000_000 + i128::from(nanos));
        }
        // The ends of the scale are kept or cut, and nothing panics.
        for seconds in [i64::MIN, i64::MAX] {
            let _ = system_time(Time { seconds, nanos: 999_999_999 });
        }
    }

    #[test]
    fn kinds_of_modes() {
        assert_eq!(kind_of_mode(0o644), Some(Kind::File));
        assert_eq!(kind_of_mode(libc::S_IFIFO | 0o600), Some(Kind::Fifo));
        assert_eq!(kind_of_mode(libc::S_IFDIR | 0o700), None);
    }
}
