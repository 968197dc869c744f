//! A build service that keeps the artifacts of its projects in memory and in a file.
//!
//! The key of an artifact names its project and the digest of its inputs. Artifacts expire a week
//! after they were built, those of a nightly build after a day, also over restarts of the service.
//! Deleting a project removes all its artifacts at once.
//!
//! ```sh
//! cargo run -p forebay --example artifact_cache
//! ```

use std::error::Error;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use forebay::{Cause, Delivery, Expiring, HybridCache};

const DAY: Duration = Duration::from_secs(24 * 3600);

/// The project, and the digest of what the artifact is built from.
type ArtifactKey = (u64, u128);

struct Service {
    artifacts: HybridCache<ArtifactKey, Expiring<Vec<u8>>>,
    builds: AtomicU64,
    /// Artifacts that memory had no more capacity for.
    evicted: Arc<AtomicU64>,
}

impl Service {
    fn open(path: &Path) -> Result<Self, Box<dyn Error>> {
        let evicted = Arc::new(AtomicU64::new(0));
        let count = evicted.clone();
        let artifacts = HybridCache::builder_at(path, 64 << 20)
            .capacity(1 << 20)
            .time_to_live(7 * DAY)
            .on_evicted(Delivery::Lossless, move |artifact| {
                if artifact.cause == Cause::Capacity {
                    count.fetch_add(1, Ordering::Relaxed);
                }
            })
            .build()?;
        Ok(Self { artifacts, builds: AtomicU64::new(0), evicted })
    }

    /// The size of an artifact, which is built if neither memory nor the file has it: once, however
    /// many requests wait for it.
    async fn size(&self, key: ArtifactKey, nightly: bool) -> Result<usize, Box<dyn Error>> {
        let artifact = self.artifacts.get_or_load_async(key, || self.build(key, nightly)).await?;
        Ok(artifact.len())
    }

    async fn build(
        &self,
        (project, inputs): ArtifactKey,
        nightly: bool,
    ) -> Result<Expiring<Vec<u8>>, String> {
        if project == 0 {
            return Err("project 0 does not exist".to_owned());
        }
        self.builds.fetch_add(1, Ordering::Relaxed);
        let binary = vec![inputs as u8; 50_000 + project as usize];
        Ok(if nightly { Expiring::after(DAY, binary) } else { binary.into() })
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    // Any other executor does as well.
    tokio::runtime::Builder::new_current_thread().build()?.block_on(serve())
}

async fn serve() -> Result<(), Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("artifacts");
    let service = Service::open(&path)?;

    // Four times as much as memory holds.
    for inputs in 0..40 {
        assert_eq!(service.size((1, inputs), false).await?, 50_001);
        assert_eq!(service.size((2, inputs), true).await?, 50_002);
    }
    assert!(service.size((0, 0), false).await.is_err());
    service.artifacts.close_async().await?;
    let [builds, evicted] = [&service.builds, &*service.evicted].map(|n| n.load(Ordering::Relaxed));
    println!("{builds} builds, {evicted} evictions");
    drop(service); // only now another one can open the file

    // After a restart most artifacts are found in the file.
    let service = Service::open(&path)?;
    assert!(service.artifacts.l2().wait_rebuilt());
    for inputs in 0..40 {
        service.size((1, inputs), false).await?;
    }
    let builds = service.builds.load(Ordering::Relaxed);
    println!("{builds} builds after the restart");
    assert!(builds < 40);

    // Project 1 is deleted, and project 2 stays.
    service.artifacts.remove_group(1)?;
    assert!((0..40).all(|inputs| !service.artifacts.contains(&(1, inputs))));
    assert!((0..40).any(|inputs| service.artifacts.contains(&(2, inputs))));
    service.artifacts.close_async().await?;
    Ok(())
}
