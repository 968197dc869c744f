//! Attaching: mounts FUSE at a directory and returns the `/dev/fuse` descriptor.
//!
//! Root calls `mount(2)`. Other users run `fusermount3`, a set-user-id helper, which mounts and
//! passes the descriptor over a socket. Root without the capability, as in a container, tries the
//! helper too.

use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::{self, IoSliceMut};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use nix::errno::Errno;
use nix::mount::MsFlags;
use nix::sys::socket::{ControlMessageOwned, MsgFlags, recvmsg};

use super::{detach, mountinfo};
use crate::error::MountError;
use crate::options::{Atime, MountFlags, MountOptions};

const DEVICE: &str = "/dev/fuse";
/// Major and minor number of `/dev/fuse`.
const DEVICE_NUMBER: (u32, u32) = (10, 229);
/// Type of the mounts, and its form in the mount table.
const SUBTYPE: &str = "forebay";
pub(super) const FS_TYPE: &str = "fuse.forebay";
/// Environment variable that names the socket's descriptor to the helper.
const HELPER_SOCKET: &str = "_FUSE_COMMFD";
/// Bit of `CAP_SYS_ADMIN` in the masks of `/proc/self/status`.
const CAP_SYS_ADMIN: u32 = 21;

/// Checks whether mounting can work here.
///
/// # Errors
///
/// `/dev/fuse` is missing or not accessible, or there is neither the right to mount nor
/// `fusermount3`.
pub fn available() -> Result<(), MountError> {
    let _device = open_device()?;
    if may_mount() || helper().is_some() {
        return Ok(());
    }
    if nix::unistd::geteuid().is_root() {
        return Err(MountError::NotPermitted { source: Errno::EPERM.into() });
    }
    Err(MountError::NoHelper)
}

fn open_device() -> Result<OwnedFd, MountError> {
    let device =
        OpenOptions::new().read(true).write(true).custom_flags(libc::O_CLOEXEC).open(DEVICE);
    let device = device.map_err(|source| match source.raw_os_error() {
        Some(libc::ENOENT | libc::ENODEV | libc::ENXIO) => MountError::NoDevice,
        _ => MountError::NoPermission { source },
    })?;
    let found = device.metadata().map_err(|source| MountError::NoPermission { source })?;
    // The path may be another file, created by mistake.
    match found.file_type().is_char_device()
        && found.rdev() == libc::makedev(DEVICE_NUMBER.0, DEVICE_NUMBER.1)
    {
        true => Ok(OwnedFd::from(device)),
        false => Err(MountError::NoDevice),
    }
}

/// Whether this process has the capability to mount.
pub(super) fn may_mount() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask & (1 << CAP_SYS_ADMIN) != 0)
}

/// Path of the helper for users who may not mount.
pub(super) fn helper() -> Option<PathBuf> {
    let directories = std::env::var_os("PATH").unwrap_or_else(|| OsString::from("/usr/bin:/bin"));
    let usual = [PathBuf::from("/usr/bin"), PathBuf::from("/bin"), PathBuf::from("/usr/local/bin")];
    let mut directories = std::env::split_paths(&directories).chain(usual);
    directories.find_map(|directory| {
        let program = directory.join("fusermount3");
        program.is_file().then_some(program)
    })
}

/// Checks that `at` is a usable mount point. Returns its full path and mode.
pub(super) fn check_mount_point(at: &Path) -> Result<(PathBuf, u32), MountError> {
    let path = || at.to_path_buf();
    let full = match at.canonicalize() {
        Ok(full) => full,
        Err(error) => {
            return Err(match error.raw_os_error() {
                Some(libc::ENOENT) => MountError::NotFound { path: path() },
                Some(libc::ENOTDIR) => MountError::NotADirectory { path: path() },
                Some(libc::ENOTCONN) => MountError::Dead { path: path() },
                _ => MountError::System { what: "examine", path: path(), source: error },
            });
        }
    };
    if let Ok(Some(entry)) = mountinfo::at(&full) {
        let dead = detach::is_dead(&full);
        return Err(if dead {
            MountError::Dead { path: path() }
        } else {
            MountError::AlreadyMounted { path: path(), source_name: entry.source }
        });
    }
    let metadata = full.metadata().map_err(|source| MountError::System {
        what: "examine",
        path: path(),
        source,
    })?;
    if !metadata.is_dir() {
        return Err(MountError::NotADirectory { path: path() });
    }
    Ok((full, metadata.mode()))
}

/// Mounts at `full`, which [`check_mount_point`] has checked. A session must serve the returned
/// descriptor.
pub(super) fn attach(
    full: &Path,
    mode: u32,
    options: &MountOptions,
) -> Result<OwnedFd, MountError> {
    let device = open_device();
    if may_mount() {
        let device = device?;
        match mount(&device, full, mode, options) {
            Ok(()) => return Ok(device),
            Err(Errno::EPERM | Errno::EACCES) if helper().is_some() => {}
            Err(error @ (Errno::EPERM | Errno::EACCES)) => {
                return Err(MountError::NotPermitted { source: error.into() });
            }
            Err(error) => {
                return Err(MountError::System {
                    what: "mount at",
                    path: full.to_path_buf(),
                    source: error.into(),
                });
            }
        }
    } else if let Err(error @ MountError::NoDevice) = device {
        return Err(error);
    }
    match helper() {
        Some(helper) => mount_by_helper(&helper, full, options),
        None if nix::unistd::geteuid().is_root() => {
            Err(MountError::NotPermitted { source: Errno::EPERM.into() })
        }
        None => Err(MountError::NoHelper),
    }
}

fn mount_flags(chosen: &MountFlags, trusted: bool) -> MsFlags {
    let mut flags = MsFlags::empty();
    flags.set(MsFlags::MS_NODEV, chosen.no_dev || !trusted);
    flags.set(MsFlags::MS_NOSUID, chosen.no_suid || !trusted);
    flags.set(MsFlags::MS_NOEXEC, chosen.no_exec);
    flags.set(MsFlags::MS_RDONLY, chosen.read_only);
    flags.set(MsFlags::MS_NODIRATIME, chosen.no_dir_atime);
    flags.set(MsFlags::MS_LAZYTIME, chosen.lazy_time);
    flags.insert(match chosen.atime {
        Atime::Relative => MsFlags::MS_RELATIME,
        Atime::Strict => MsFlags::MS_STRICTATIME,
        Atime::Off => MsFlags::MS_NOATIME,
    });
    flags
}

/// Changes the flags of a mount.
pub(super) fn remount(full: &Path, flags: &MountFlags, trusted: bool) -> Result<(), MountError> {
    if !may_mount() {
        return Err(MountError::RemountNotPermitted { path: full.to_path_buf() });
    }
    let flags = MsFlags::MS_REMOUNT | mount_flags(flags, trusted);
    nix::mount::mount(None::<&str>, full, None::<&str>, flags, None::<&str>).map_err(|error| {
        let path = full.to_path_buf();
        match error {
            Errno::EBUSY => MountError::OpenForWriting { path },
            _ => MountError::System { what: "remount", path, source: error.into() },
        }
    })
}

fn mount(device: &OwnedFd, full: &Path, mode: u32, options: &MountOptions) -> Result<(), Errno> {
    let flags = mount_flags(&options.flags, options.trusted);
    let mut data = format!(
        "fd={},rootmode={:o},user_id={},group_id={},default_permissions",
        device.as_raw_fd(),
        mode & libc::S_IFMT,
        nix::unistd::getuid(),
        nix::unistd::getgid(),
    );
    if options.allow_other {
        data.push_str(",allow_other");
    }
    nix::mount::mount(
        Some(options.fs_name.as_str()),
        full,
        Some(FS_TYPE),
        flags,
        Some(data.as_str()),
    )
}

/// Commas separate the helper's options, so a comma in a value is escaped.
fn helper_options(options: &MountOptions) -> String {
    let name = options.fs_name.replace('\\', "\\\\").replace(',', "\\,");
    let mut text = format!("fsname={name},subtype={SUBTYPE},default_permissions");
    let flags = &options.flags;
    let (no_suid, no_dev) = (flags.no_suid || !options.trusted, flags.no_dev || !options.trusted);
    let chosen = [
        (options.allow_other, "allow_other"),
        (flags.read_only, "ro"),
        (flags.no_exec, "noexec"),
        (flags.atime == Atime::Off, "noatime"),
        (flags.no_dir_atime, "nodiratime"),
        (!no_suid, "suid"),
        (!no_dev, "dev"),
        (no_suid, "nosuid"),
        (no_dev, "nodev"),
    ];
    for (_, option) in chosen.into_iter().filter(|(chosen, _)| *chosen) {
        text.push(',');
        text.push_str(option);
    }
    text
}

fn mount_by_helper(
    helper: &Path,
    full: &Path,
    options: &MountOptions,
) -> Result<OwnedFd, MountError> {
    let system = |source| MountError::System {
        what: "start fusermount3 to mount",
        path: full.to_path_buf(),
        source,
    };
    let (ours, theirs) = UnixStream::pair().map_err(system)?;
    // `dup` clears close-on-exec, so that the helper inherits the descriptor.
    let inherited = nix::unistd::dup(&theirs).map_err(|error| system(error.into()))?;
    drop(theirs);
    let child = Command::new(helper)
        .arg("-o")
        .arg(helper_options(options))
        .arg("--")
        .arg(full)
        .env(HELPER_SOCKET, inherited.as_raw_fd().to_string())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(system)?;
    drop(inherited);
    let device = receive_device(&ours);
    let stderr = helper_stderr(child).map_err(system)?;
    match device {
        Ok(Some(device)) => Ok(device),
        Ok(None) | Err(_) => Err(helper_error(full, &stderr)),
    }
}

/// Waits for the helper and returns its error output.
fn helper_stderr(child: Child) -> io::Result<String> {
    let output = child.wait_with_output()?;
    Ok(String::from_utf8_lossy(&output.stderr).into_owned())
}

fn helper_error(full: &Path, stderr: &str) -> MountError {
    let line =
        stderr.lines().find(|line| !line.trim().is_empty()).unwrap_or("it printed no error").trim();
    let line = line.strip_prefix("fusermount3: ").unwrap_or(line);
    let hint =
        if line.contains("user_allow_other") { " (or mount without --allow-other)" } else { "" };
    MountError::Helper { path: full.to_path_buf(), message: format!("{line}{hint}") }
}

/// Receives the descriptor from the helper, if it sends one.
fn receive_device(socket: &UnixStream) -> io::Result<Option<OwnedFd>> {
    let mut byte = [0u8];
    let mut buffer = nix::cmsg_space!(RawFd);
    loop {
        let mut parts = [IoSliceMut::new(&mut byte)];
        let flags = MsgFlags::MSG_CMSG_CLOEXEC;
        let message = match recvmsg::<()>(socket.as_raw_fd(), &mut parts, Some(&mut buffer), flags)
        {
            Ok(message) => message,
            Err(Errno::EINTR) => continue,
            Err(error) => return Err(error.into()),
        };
        for part in message.cmsgs()? {
            if let ControlMessageOwned::ScmRights(descriptors) = part
                && let Some(&descriptor) = descriptors.first()
            {
                // SAFETY: the kernel has just installed this descriptor, nothing else owns it, and
                // the buffer has space for only one.
                let device = unsafe { File::from_raw_fd(descriptor) };
                return Ok(Some(device.into()));
            }
        }
        return Ok(None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_helper_gets_the_mount_options() {
        let options = MountOptions {
            fs_name: "a,b\\c".to_owned(),
            trusted: false,
            allow_other: false,
            flags: MountFlags { read_only: true, ..MountFlags::default() },
            ..MountOptions::default()
        };
        let text = helper_options(&options);
        assert_eq!(text, "fsname=a\\,b\\\\c,subtype=forebay,default_permissions,ro,nosuid,nodev");
    }

    #[test]
    fn bad_mount_points_are_refused_by_name() {
        let directory = tempfile::tempdir().expect("a directory");
        let missing = directory.path().join("missing");
        assert!(
            matches!(check_mount_point(&missing), Err(MountError::NotFound { path }) if path == missing)
        );
        let file = directory.path().join("file");
        std::fs::write(&file, "").expect("a file");
        assert!(matches!(check_mount_point(&file), Err(MountError::NotADirectory { .. })));
        assert!(matches!(
            check_mount_point(Path::new("/proc")),
            Err(MountError::AlreadyMounted { .. })
        ));
        assert!(check_mount_point(directory.path()).is_ok());
    }

    #[test]
    fn a_helper_error_is_one_line_with_a_hint() {
        let stderr = "\nfusermount3: option allow_other only allowed if 'user_allow_other' is set in /etc/fuse.conf\n";
        let text = helper_error(Path::new("/mnt"), stderr).to_string();
        assert!(text.starts_with("fusermount3 failed for /mnt: option allow_other"), "{text}");
        assert!(text.ends_with("(or mount without --allow-other)"), "{text}");
    }
}
