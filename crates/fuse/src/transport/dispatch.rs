//! The transport over the crate `fuser`: the only module that names it.
//!
//! Each thread has a descriptor of `/dev/fuse` of its own (`FUSE_DEV_IOC_CLONE`), so a request is answered where it
//! was taken, if it need not wait. Answers that went to another thread are written through the descriptor that they came by.
//!
//! # Departures that the crate forces
//!
//! 1. It reads times before 1970 with the nanoseconds counted the wrong way; [`time_of`] undoes that.
//! 2. In answers to `readdirplus` it uses one number for the entry and for what the kernel refers to. So for an entry without attributes the
//!    kernel takes a reference that the server has not counted, and gives it back in a `forget` too many.
//! 3. It does not show whether an `open` that truncates, or a `setattr`, has to drop set-user-id bits
//!    (`FUSE_HANDLE_KILLPRIV_V2`). The server goes by the caller: everybody but user 0 drops them. Writes do
//!    show it.
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
    Errno, FileHandle, INodeNo, InitFlags, KernelConfig, LockOwner, OpenFlags, RenameFlags,
    Request, SessionACL, TimeOrNow, WriteFlags,
};

use super::convert::{kind_of_mode, permissions, set_time, time_of};
use super::replies::{DirOpened, FileOpened, Names, NamesPlus};
use super::{
    Caller, CopyRange, KernelNotifier, Kind, NewNode, OpenHow, Server, SetAttributes, SyncMode,
    WriteRequest,
};
use crate::counters::{MountCounters, MountMetrics, Op};
use crate::options::MountOptions;

/// A session that has shaken hands with the kernel and takes no requests yet.
pub(crate) struct Session<S: Server> {
    inner: fuser::Session<Dispatcher<S>>,
    server: Arc<S>,
}

/// Shakes hands with the kernel over `device`, which is attached to a mount point already.
pub(crate) fn start<S: Server>(
    device: OwnedFd,
    server: Arc<S>,
    metrics: Arc<MountMetrics>,
    options: &MountOptions,
) -> io::Result<Session<S>> {
    let mut config = fuser::Config::default();
    config.n_threads = Some(options.threads);
    config.clone_fd = options.threads > 1;
    // Who may come in is the kernel's to say, by `allow_other`; the crate's own check would say it again.
    let dispatcher = Dispatcher { server: server.clone(), metrics, options: options.clone() };
    let inner = fuser::Session::from_fd(dispatcher, device, SessionACL::All, config)?;
    Ok(Session { inner, server })
}

impl<S: Server> Session<S> {
    /// Takes requests, on threads of its own, until the kernel ends it; returns then.
    pub(crate) fn run(self) -> io::Result<()> {
        self.server.started(Arc::new(Connection(self.inner.notifier())));
        let end = self.inner.run();
        self.server.ended();
        end
    }
}

struct Connection(fuser::Notifier);

impl KernelNotifier for Connection {
    fn invalidate_entry(&self, parent: u64, name: &[u8]) -> bool {
        match self.0.inval_entry(INodeNo(parent), OsStr::from_bytes(name)) {
            Ok(()) => true,
            // In use, or another request about it runs: not now, but the connection stands.
            Err(error) => {
                !matches!(error.raw_os_error(), Some(libc::ENODEV | libc::ENOTCONN | libc::EBADF))
            }
        }
    }

    fn invalidate_attributes(&self, ino: u64) {
        // A negative offset: attributes alone. An error says that the kernel does not know the inode.
        let _ = self.0.inval_inode(INodeNo(ino), -1, 0);
    }

    fn flush_pages(&self, ino: u64) {
        // Before it lets go of pages, the kernel writes those that are dirty, and waits for that. What
        // it could not write is reported by the next fsync, as ever.
        let _ = self.0.inval_inode(INodeNo(ino), 0, 0);
    }
}

struct Dispatcher<S> {
    server: Arc<S>,
    metrics: Arc<MountMetrics>,
    options: MountOptions,
}

impl<S> Dispatcher<S> {
    fn count(&self, op: Op) {
        self.metrics.counters.add(MountCounters::REQUESTS, op as usize, 1);
    }
}

/// What the kernel is asked for, if it can.
fn init_flags(options: &MountOptions) -> InitFlags {
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

/// What has to be durable before a write with these flags of an open is answered.
fn sync_mode(flags: i32) -> SyncMode {
    // `O_SYNC` has the bit of `O_DSYNC` and one more.
    match flags & libc::O_SYNC {
        libc::O_SYNC => SyncMode::All,
        libc::O_DSYNC => SyncMode::Data,
        _ => SyncMode::None,
    }
}

fn open_how(flags: i32) -> OpenHow {
    let writes = matches!(flags & libc::O_ACCMODE, libc::O_WRONLY | libc::O_RDWR);
    OpenHow { truncate: flags & libc::O_TRUNC != 0, writes, sync_mode: sync_mode(flags) }
}

fn caller(request: &Request) -> Caller {
    Caller { uid: request.uid(), gid: request.gid(), pid: request.pid() }
}

#[allow(clippy::too_many_arguments, reason = "the crate's trait has them")]
impl<S: Server> fuser::Filesystem for Dispatcher<S> {
    fn init(&mut self, _request: &Request, config: &mut KernelConfig) -> io::Result<()> {
        let supported = config.capabilities();
        // Asking for what is there cannot be refused.
        let _ = config.add_capabilities(init_flags(&self.options) & supported);
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
        let node =
            NewNode { kind: Kind::Directory, mode: permissions(mode), rdev: 0, target: None };
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
        flags: i32,
        reply: fuser::ReplyCreate,
    ) {
        self.count(Op::Create);
        let (name, mode, how) = (name.as_bytes(), permissions(mode), open_how(flags));
        self.server.create(caller(request), parent.0, name, mode, how, reply);
    }

    fn open(&self, request: &Request, ino: INodeNo, flags: OpenFlags, reply: fuser::ReplyOpen) {
        self.count(Op::Open);
        self.server.open(caller(request), ino.0, open_how(flags.0), FileOpened(reply));
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
        let shard = self.metrics.counters.shard();
        shard.add(MountCounters::REQUESTS, Op::Read as usize, 1);
        shard.add(MountCounters::READ_BYTES, 0, u64::from(size));
        self.server.read(ino.0, handle.0, offset, size, reply);
    }

    fn write(
        &self,
        request: &Request,
        ino: INodeNo,
        handle: FileHandle,
        offset: u64,
        data: &[u8],
        write_flags: WriteFlags,
        flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: fuser::ReplyWrite,
    ) {
        let shard = self.metrics.counters.shard();
        shard.add(MountCounters::REQUESTS, Op::Write as usize, 1);
        shard.add(MountCounters::WRITE_BYTES, 0, data.len() as u64);
        let write_request = WriteRequest {
            offset,
            data,
            kill_priv: write_flags
                .contains(WriteFlags::FUSE_WRITE_KILL_SUIDGID)
                .then(|| caller(request)),
            is_writeback: write_flags.contains(WriteFlags::FUSE_WRITE_CACHE),
            sync_mode: sync_mode(flags.0),
        };
        self.server.write(ino.0, handle.0, write_request, reply);
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
        self.server.opendir(ino.0, DirOpened(reply));
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
        self.server.readdir(ino.0, handle.0, from, Names::new(reply));
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
        self.server.readdirplus(ino.0, handle.0, from, NamesPlus::new(reply));
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
        request: &Request,
        ino: INodeNo,
        handle: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: fuser::ReplyEmpty,
    ) {
        self.count(Op::Fallocate);
        self.server.fallocate(caller(request), ino.0, handle.0, (offset, length), mode, reply);
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
        request: &Request,
        from: INodeNo,
        _from_handle: FileHandle,
        from_offset: u64,
        to: INodeNo,
        to_handle: FileHandle,
        to_offset: u64,
        len: u64,
        _flags: fuser::CopyFileRangeFlags,
        reply: fuser::ReplyWrite,
    ) {
        self.count(Op::Copy);
        let (from, to, to_handle) = (from.0, to.0, to_handle.0);
        let range = CopyRange { from, from_offset, to, to_handle, to_offset, len };
        self.server.copy(caller(request), range, reply);
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
        _out_size: u32,
        reply: fuser::ReplyIoctl,
    ) {
        reply.error(Errno::ENOTTY);
    }
}
