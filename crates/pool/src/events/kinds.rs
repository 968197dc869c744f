//! The kinds of events: one row each, which makes the enum, the label of the counter, the level and
//! message for `tracing`, and the word that commands print.

/// Makes [`EventKind`] of its rows: doc comment, name, label, level, field of the detail, message.
/// Each row is a place of its own in the source, because the log limits the events of a place.
macro_rules! event_kinds {
    ($($(#[$doc:meta])* $kind:ident $label:literal $level:ident $field:ident $message:literal;)*) => {
        /// What happened to a pool.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum EventKind {
            $($(#[$doc])* $kind,)*
        }

        impl EventKind {
            /// All kinds.
            pub const ALL: &[Self] = &[$(Self::$kind),*];

            /// The kind as a word, in snake case.
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$kind => $label,)*
                }
            }

            /// What happened, in words that the name of a device may follow.
            pub fn message(self) -> &'static str {
                match self {
                    $(Self::$kind => $message,)*
                }
            }

            pub(super) fn trace(
                self,
                pool: &str,
                device: Option<&str>,
                txg: Option<u64>,
                detail: Option<&str>,
            ) {
                match self {
                    $(Self::$kind => {
                        tracing::$level!(pool, device, txg, $field = detail, $message);
                    })*
                }
            }
        }

        forebay_base::counters! {
            /// Counters of the events of a pool, since import.
            pub table EventCounters;
            labels kind = [$($label),*];

            /// Events by kind, as `forebay events` lists them.
            events: kind;
        }
    };
}

event_kinds! {
    /// The pool was created, and is imported.
    Created "created" info detail "created pool";
    /// The pool was imported.
    Imported "imported" info detail "imported pool";
    /// The pool was exported.
    Exported "exported" info detail "exported pool";
    /// The pool was closed, but its last changes could not be written.
    ClosedDirty "closed_dirty" error error "closed pool without a clean export";
    /// Nothing is written any more.
    Suspended "suspended" error error "suspended pool";
    /// The pool goes on after a suspension.
    Resumed "resumed" info detail "resumed pool";
    /// A request of a device failed.
    DeviceFailed "device_failed" warn error "device error";
    /// A device of a mirror misses blocks.
    DeviceDegraded "device_degraded" error error "degraded device of a mirror";
    /// A device of a mirror is not used any more.
    DeviceFaulted "device_faulted" error error "faulted device of a mirror";
    /// A device that is taken into use was truncated, and has grown again.
    DeviceLostEnd "device_lost_end" warn detail "took a device that has lost its end";
    /// A device of a mirror was taken out of use.
    DeviceOffline "device_offline" info detail "device is offline";
    /// A device of a mirror is in use again.
    DeviceOnline "device_online" info detail "device is online";
    /// A device of a mirror misses no blocks any more.
    DeviceWhole "device_whole" info detail "device of a mirror has all blocks again";
    /// A device joins a mirror, beside another device or in its place.
    DeviceAttached "device_attached" info detail "attached device";
    /// A device has left a mirror for good.
    DeviceDetached "device_detached" info detail "detached device";
    /// The pool has another device, or mirror.
    DeviceAdded "device_added" info detail "added device";
    /// The pool uses more of a device.
    DeviceExpanded "device_expanded" info detail "expanded device";
    /// The pool has another L2 device.
    L2Added "l2_added" info detail "added L2 device";
    /// An L2 device does not belong to the pool any more.
    L2Removed "l2_removed" info detail "removed L2 device";
    /// An L2 device is not used any more, or was not found by the import.
    L2Lost "l2_lost" warn error "lost L2 device";
    /// A resilver brings missed blocks onto devices.
    ResilverBegan "resilver_began" info detail "resilver runs";
    /// The resilver has ended.
    ResilverEnded "resilver_ended" info detail "resilver ended";
    /// A scrub began, or goes on.
    ScrubBegan "scrub_began" info detail "scrub runs";
    /// The scrub has ended, or was interrupted.
    ScrubEnded "scrub_ended" info detail "scrub ended";
    /// A bad copy of a block was rewritten from a good one.
    Healed "healed" warn place "healed block";
    /// A block has no good copy.
    BlockLost "block_lost" error error "lost block";
}

impl EventKind {
    /// Whether one cause may make many of them.
    pub(super) fn repeats(self) -> bool {
        matches!(self, Self::DeviceFailed | Self::Healed | Self::BlockLost)
    }
}
