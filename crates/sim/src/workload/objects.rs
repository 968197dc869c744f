//! Random changes of objects' content.

use std::sync::Arc;

use forebay_pool::{Result, Transaction};

use super::Workload;
use crate::model::{Change, Key};

/// Largest size of an object, in bytes.
const SIZE_MAX: u64 = 1 << 20;

impl Workload {
    /// A few changes of one object, in one transaction.
    pub(super) fn change_object(&mut self) -> Result<()> {
        let Some(key) = self.pick(false) else { return self.create() };
        let count = self.rng.below(4) + 1;
        self.transact(|this, tx| {
            for _ in 0..count {
                match this.rng.below(10) {
                    0 => this.truncate(tx, key)?,
                    1..3 => this.punch(tx, key)?,
                    _ => this.write(tx, key)?,
                }
            }
            Ok(())
        })
    }

    fn write(&mut self, tx: &Transaction<'_>, key: Key) -> Result<()> {
        let size = self.bytes_of(key) as u64;
        let len = match self.rng.below(8) {
            0 => 0,
            1..5 => self.rng.below(300),
            5..7 => self.rng.below(20_000),
            _ => self.rng.below(200_000),
        };
        let mut offset = match self.rng.below(8) {
            0..3 => size,
            3 => size + self.rng.below(150_000),
            _ => self.rng.below(size + 1),
        };
        if self.rng.below(3) == 0 {
            offset &= !4095;
        }
        let offset = offset.min(SIZE_MAX - len);
        let bytes = Arc::new(self.bytes(len as usize));
        self.announce_change();
        self.datasets[key.0].object(key.1)?.write(tx, offset, &bytes)?;
        self.record_change(tx.txg(), key, Change::Write { offset, bytes });
        Ok(())
    }

    fn truncate(&mut self, tx: &Transaction<'_>, key: Key) -> Result<()> {
        let size = self.bytes_of(key) as u64;
        let size = match self.rng.below(5) {
            0 => 0,
            1 => size + self.rng.below(100_000),
            _ => self.rng.below(size + 1),
        };
        let size = size.min(SIZE_MAX);
        self.announce_change();
        self.datasets[key.0].object(key.1)?.truncate(tx, size)?;
        self.record_change(tx.txg(), key, Change::Truncate(size));
        Ok(())
    }

    fn punch(&mut self, tx: &Transaction<'_>, key: Key) -> Result<()> {
        let size = self.bytes_of(key) as u64;
        let offset = self.rng.below(size + 1);
        let len = match self.rng.below(3) {
            0 => size + 5000,
            1 => self.rng.below(100_000),
            _ => self.rng.below(500),
        };
        self.announce_change();
        self.datasets[key.0].object(key.1)?.punch(tx, offset, len)?;
        self.record_change(tx.txg(), key, Change::Punch { offset, len });
        Ok(())
    }

    /// Incompressible bytes, compressible bytes, or zeros.
    fn bytes(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        match self.rng.below(5) {
            0 => {}
            1 => bytes.fill(self.rng.below(256) as u8),
            _ => self.rng.fill(&mut bytes),
        }
        bytes
    }
}
