//! What the file system asks of the kernel, and of the system around it.

use forebay_base::sync::Arc;
use forebay_fs::{Caller, Ino};

use crate::transport::Kernel;

/// The kernel behind the mount.
pub(super) struct Client(pub(super) Arc<dyn Kernel>);

impl forebay_fs::Client for Client {
    fn mode_changed(&self, ino: Ino) {
        self.0.forget_attributes(ino.0);
    }

    /// By the list of the process: a request names one group only.
    fn is_member(&self, caller: Caller, gid: u32) -> bool {
        let status = format!("/proc/{}/status", caller.pid);
        caller.gid == gid
            || std::fs::read_to_string(status).is_ok_and(|status| lists_group(&status, gid))
    }
}

/// Whether the text of `/proc/PID/status` has the group in its list.
fn lists_group(status: &str, gid: u32) -> bool {
    let groups = status.lines().find_map(|line| line.strip_prefix("Groups:")).unwrap_or_default();
    groups.split_whitespace().any(|group| group.parse() == Ok(gid))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_of_a_process_are_read() {
        let status = "Name:\tcat\nGid:\t7\t7\t7\t7\nGroups:\t4 24 27 \nNStgid:\t9\n";
        assert!(lists_group(status, 24) && !lists_group(status, 7) && !lists_group("", 0));
    }
}
