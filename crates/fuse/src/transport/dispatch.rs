//! Dispatches requests of the kernel to a [`Server`], through the crate `fuser`.
//!
//! # Limits of `fuser`
//!
//! 1. It misreads the nanoseconds of times before 1970. [`time_of`] corrects them.
//! 2. In `readdirplus` replies it uses one inode number for the entry and for the reference. For an
//!    entry without attributes the kernel takes a reference that the server has not counted, and
//!    drops it with one `forget` too many.
//! 3. It hides the kill-priv flags of `open` with `O_TRUNC` and of `setattr`
//!    (`FUSE_HANDLE_KILLPRIV_V2`). The server decides by the caller. For `write` the flag is
//!    visible.
//! 4. It answers `interrupt` with `ENOSYS`: the kernel then sends no more of them. So a signal does
//!    not interrupt a request. The adapter looks itself whether the caller of a request that waits
//!    for a suspended pool was killed.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::{Duration, SystemTime};

use forebay_base::sync::Arc;
use fuser::{
    Errno, FileHandle, INodeNo, InitFlags, KernelConfig, LockOwner, OpenFlags, RenameFlags,
    Request, TimeOrNow, WriteFlags,
};

use super::convert::{kind_of_mode, permissions, set_time, time_of};
use super::replies::{DataReply, DirOpened, DirReply, FileCreated, FileOpened, Timed, XattrReply};
use super::{
    Caller, CopyRange, Kind, NewNode, OpenHow, Server, SetAttributes, SyncMode, WriteRequest,
};
use crate::counters::{MountCounters, MountMetrics, Op};
use crate::options::MountOptions;

pub(super) struct Dispatcher<S> {
    pub(super) server: Arc<S>,
    pub(super) metrics: Arc<MountMetrics>,
    pub(super) options: MountOptions,
    /// The kernel caches the content of open files.
    pub(super) page_cache: bool,
}

/// Features to request, as far as the kernel offers them.
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

/// What the handshake settles.
#[derive(Debug, PartialEq, Eq)]
struct Negotiated {
    flags: InitFlags,
    /// See [`Dispatcher::page_cache`].
    page_cache: bool,
}

/// Chooses among the features that the kernel offers. Before Linux 6.6 it refuses shared mappings
/// of files with direct I/O. Then content goes through the kernel's page cache, and each write
/// still reaches the server before it returns.
fn negotiate(options: &MountOptions, offered: InitFlags) -> Negotiated {
    let usable = offered & !InitFlags::from_bits_retain(options.ignored_features);
    let flags = init_flags(options) & usable;
    let direct_mmap = flags.contains(InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP);
    Negotiated { flags, page_cache: options.kernel_cache || !direct_mmap }
}

/// The sync mode of a file that is open with these flags.
fn sync_mode(flags: i32) -> SyncMode {
    // `O_SYNC` is `O_DSYNC` plus one bit.
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

#[allow(clippy::too_many_arguments, reason = "the trait of fuser has them")]
impl<S: Server> fuser::Filesystem for Dispatcher<S> {
    fn init(&mut self, _request: &Request, config: &mut KernelConfig) -> io::Result<()> {
        let Negotiated { flags, page_cache } = negotiate(&self.options, config.capabilities());
        self.page_cache = page_cache;
        if page_cache && !self.options.kernel_cache {
            tracing::warn!(
                fs = self.options.fs_name,
                "this kernel has no shared mappings of files with direct I/O (Linux 6.6 has): content is \
                 also cached by the kernel, which takes memory"
            );
        }
        // Requesting offered capabilities cannot fail.
        let _ = config.add_capabilities(flags);
        let _ = config.set_max_write(self.options.max_write_bytes);
        // The kernel's offer is its default; `tune_bdi` raises the limit after the mount.
        if let Err(most) = config.set_max_readahead(self.options.read_ahead_bytes) {
            let _ = config.set_max_readahead(most);
        }
        let _ = config.set_max_background(self.options.max_background);
        let _ = config.set_time_granularity(Duration::from_nanos(1));
        Ok(())
    }

    fn lookup(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: fuser::ReplyEntry) {
        let timer = self.metrics.begin(Op::Lookup);
        self.server.lookup(caller(request), parent.0, name.as_bytes(), Timed { reply, timer });
    }

    fn forget(&self, _request: &Request, ino: INodeNo, count: u64) {
        self.metrics.counters.add(MountCounters::REQUESTS, Op::Forget as usize, 1);
        self.server.forget(ino.0, count);
    }

    fn getattr(
        &self,
        request: &Request,
        ino: INodeNo,
        _handle: Option<FileHandle>,
        reply: fuser::ReplyAttr,
    ) {
        let timer = self.metrics.begin(Op::Getattr);
        self.server.getattr(caller(request), ino.0, Timed { reply, timer });
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
        let timer = self.metrics.begin(Op::Setattr);
        let set = SetAttributes {
            mode: mode.map(permissions),
            uid,
            gid,
            size,
            atime: atime.map(set_time),
            mtime: mtime.map(set_time),
            ctime: ctime.map(time_of),
        };
        self.server.setattr(caller(request), ino.0, set, Timed { reply, timer });
    }

    fn readlink(&self, request: &Request, ino: INodeNo, reply: fuser::ReplyData) {
        let timer = self.metrics.begin(Op::Readlink);
        self.server.readlink(caller(request), ino.0, DataReply { reply, timer });
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
        let timer = self.metrics.begin(Op::Make);
        let Some(kind) = kind_of_mode(mode) else { return reply.error(Errno::EINVAL) };
        let node = NewNode { kind, mode: permissions(mode), rdev, target: None };
        self.server.make(caller(request), parent.0, name.as_bytes(), node, Timed { reply, timer });
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
        let timer = self.metrics.begin(Op::Make);
        let node =
            NewNode { kind: Kind::Directory, mode: permissions(mode), rdev: 0, target: None };
        self.server.make(caller(request), parent.0, name.as_bytes(), node, Timed { reply, timer });
    }

    fn symlink(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        target: &Path,
        reply: fuser::ReplyEntry,
    ) {
        let timer = self.metrics.begin(Op::Make);
        let target = Some(target.as_os_str().as_bytes());
        let node = NewNode { kind: Kind::Symlink, mode: 0o777, rdev: 0, target };
        self.server.make(caller(request), parent.0, name.as_bytes(), node, Timed { reply, timer });
    }

    fn unlink(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: fuser::ReplyEmpty) {
        let timer = self.metrics.begin(Op::Unlink);
        self.server.unlink(caller(request), parent.0, name.as_bytes(), Timed { reply, timer });
    }

    fn rmdir(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: fuser::ReplyEmpty) {
        let timer = self.metrics.begin(Op::Rmdir);
        self.server.rmdir(caller(request), parent.0, name.as_bytes(), Timed { reply, timer });
    }

    fn rename(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        new_parent: INodeNo,
        new_name: &OsStr,
        flags: RenameFlags,
        reply: fuser::ReplyEmpty,
    ) {
        let timer = self.metrics.begin(Op::Rename);
        let (from, to) = ((parent.0, name.as_bytes()), (new_parent.0, new_name.as_bytes()));
        self.server.rename(caller(request), from, to, flags.bits(), Timed { reply, timer });
    }

    fn link(
        &self,
        request: &Request,
        ino: INodeNo,
        parent: INodeNo,
        name: &OsStr,
        reply: fuser::ReplyEntry,
    ) {
        let timer = self.metrics.begin(Op::Link);
        self.server.link(caller(request), ino.0, parent.0, name.as_bytes(), Timed { reply, timer });
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
        let timer = self.metrics.begin(Op::Create);
        let (name, mode, how) = (name.as_bytes(), permissions(mode), open_how(flags));
        let reply = FileCreated { reply, page_cache: self.page_cache };
        self.server.create(caller(request), parent.0, name, mode, how, Timed { reply, timer });
    }

    fn open(&self, request: &Request, ino: INodeNo, flags: OpenFlags, reply: fuser::ReplyOpen) {
        let timer = self.metrics.begin(Op::Open);
        let reply = FileOpened { reply, page_cache: self.page_cache };
        self.server.open(caller(request), ino.0, open_how(flags.0), Timed { reply, timer });
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
        let timer = self.metrics.begin(Op::Release);
        self.server.release(ino.0, handle.0, Timed { reply, timer });
    }

    fn flush(
        &self,
        _request: &Request,
        _ino: INodeNo,
        _handle: FileHandle,
        _owner: LockOwner,
        reply: fuser::ReplyEmpty,
    ) {
        // Nothing to do on close. The kernel does not send it again after ENOSYS.
        reply.error(Errno::ENOSYS);
    }

    fn read(
        &self,
        request: &Request,
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
        let timer = self.metrics.time(Op::Read);
        self.server.read(
            caller(request),
            ino.0,
            handle.0,
            offset,
            size,
            DataReply { reply, timer },
        );
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
        let timer = self.metrics.time(Op::Write);
        let write_request = WriteRequest {
            offset,
            data,
            kill_priv: write_flags
                .contains(WriteFlags::FUSE_WRITE_KILL_SUIDGID)
                .then(|| caller(request)),
            is_writeback: write_flags.contains(WriteFlags::FUSE_WRITE_CACHE),
            sync_mode: sync_mode(flags.0),
        };
        self.server.write(caller(request), ino.0, handle.0, write_request, Timed { reply, timer });
    }

    fn fsync(
        &self,
        request: &Request,
        ino: INodeNo,
        _handle: FileHandle,
        data_only: bool,
        reply: fuser::ReplyEmpty,
    ) {
        let timer = self.metrics.begin(Op::Fsync);
        self.server.fsync(caller(request), ino.0, data_only, Timed { reply, timer });
    }

    fn opendir(&self, request: &Request, ino: INodeNo, _flags: OpenFlags, reply: fuser::ReplyOpen) {
        let timer = self.metrics.begin(Op::Opendir);
        self.server.opendir(caller(request), ino.0, Timed { reply: DirOpened(reply), timer });
    }

    fn readdir(
        &self,
        request: &Request,
        ino: INodeNo,
        handle: FileHandle,
        from: u64,
        reply: fuser::ReplyDirectory,
    ) {
        let timer = self.metrics.begin(Op::Readdir);
        self.server.readdir(caller(request), ino.0, handle.0, from, DirReply::names(reply, timer));
    }

    fn readdirplus(
        &self,
        request: &Request,
        ino: INodeNo,
        handle: FileHandle,
        from: u64,
        reply: fuser::ReplyDirectoryPlus,
    ) {
        let timer = self.metrics.begin(Op::Readdir);
        self.server.readdirplus(
            caller(request),
            ino.0,
            handle.0,
            from,
            DirReply::with_attributes(reply, timer),
        );
    }

    fn releasedir(
        &self,
        _request: &Request,
        ino: INodeNo,
        handle: FileHandle,
        _flags: OpenFlags,
        reply: fuser::ReplyEmpty,
    ) {
        let timer = self.metrics.begin(Op::Releasedir);
        self.server.releasedir(ino.0, handle.0, Timed { reply, timer });
    }

    fn fsyncdir(
        &self,
        request: &Request,
        ino: INodeNo,
        _handle: FileHandle,
        _data_only: bool,
        reply: fuser::ReplyEmpty,
    ) {
        let timer = self.metrics.begin(Op::Fsync);
        self.server.fsyncdir(caller(request), ino.0, Timed { reply, timer });
    }

    fn statfs(&self, _request: &Request, _ino: INodeNo, reply: fuser::ReplyStatfs) {
        let timer = self.metrics.begin(Op::Statfs);
        self.server.statfs(Timed { reply, timer });
    }

    fn setxattr(
        &self,
        request: &Request,
        ino: INodeNo,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        _position: u32,
        reply: fuser::ReplyEmpty,
    ) {
        let timer = self.metrics.begin(Op::Xattr);
        self.server.setxattr(
            caller(request),
            ino.0,
            name.as_bytes(),
            value,
            flags,
            Timed { reply, timer },
        );
    }

    fn getxattr(
        &self,
        request: &Request,
        ino: INodeNo,
        name: &OsStr,
        size: u32,
        reply: fuser::ReplyXattr,
    ) {
        let timer = self.metrics.begin(Op::Xattr);
        self.server.getxattr(
            caller(request),
            ino.0,
            name.as_bytes(),
            size,
            XattrReply { reply, timer },
        );
    }

    fn listxattr(&self, request: &Request, ino: INodeNo, size: u32, reply: fuser::ReplyXattr) {
        let timer = self.metrics.begin(Op::Xattr);
        self.server.listxattr(caller(request), ino.0, size, XattrReply { reply, timer });
    }

    fn removexattr(&self, request: &Request, ino: INodeNo, name: &OsStr, reply: fuser::ReplyEmpty) {
        let timer = self.metrics.begin(Op::Xattr);
        self.server.removexattr(caller(request), ino.0, name.as_bytes(), Timed { reply, timer });
    }

    fn access(
        &self,
        _request: &Request,
        _ino: INodeNo,
        _mask: fuser::AccessFlags,
        reply: fuser::ReplyEmpty,
    ) {
        // With `default_permissions` the kernel checks access itself.
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
        let timer = self.metrics.begin(Op::Fallocate);
        self.server.fallocate(
            caller(request),
            ino.0,
            handle.0,
            (offset, length),
            mode,
            Timed { reply, timer },
        );
    }

    fn lseek(
        &self,
        request: &Request,
        ino: INodeNo,
        handle: FileHandle,
        offset: i64,
        whence: i32,
        reply: fuser::ReplyLseek,
    ) {
        let timer = self.metrics.begin(Op::Seek);
        match u64::try_from(offset) {
            Ok(offset) => {
                let reply = Timed { reply, timer };
                self.server.seek(caller(request), ino.0, handle.0, offset, whence, reply);
            }
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
        let timer = self.metrics.begin(Op::Copy);
        let (from, to, to_handle) = (from.0, to.0, to_handle.0);
        let range = CopyRange { from, from_offset, to, to_handle, to_offset, len };
        self.server.copy(caller(request), range, Timed { reply, timer });
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_without_direct_mappings_caches_content() {
        let (all, options) = (InitFlags::all(), MountOptions::default());
        let direct = InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP;
        let new = negotiate(&options, all);
        assert!(new.flags.contains(direct) && !new.page_cache);
        let old = negotiate(&options, all - direct);
        assert_eq!(old, Negotiated { flags: new.flags - direct, page_cache: true });
        // Writes do not wait in the kernel.
        assert!(!old.flags.contains(InitFlags::FUSE_WRITEBACK_CACHE));
        let ignoring = MountOptions { ignored_features: direct.bits(), ..MountOptions::default() };
        assert_eq!(negotiate(&ignoring, all), old);
        let cached = MountOptions { kernel_cache: true, ..MountOptions::default() };
        assert!(negotiate(&cached, all).page_cache);
        assert_eq!(negotiate(&options, InitFlags::empty()).flags, InitFlags::empty());
    }
}
