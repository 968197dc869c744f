//! `object-requests`: puts or ranged gets of an object store, with nothing above them.
//!
//! They are sent as a pool sends them: by the same client, so many at a time. What a pool reaches
//! is divided by that. `scripts/compare-mounts --object-store` does so.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use forebay_object::{Body, Condition, ObjectStore, Options, StoreError, connect};

use rand::{Rng, SeedableRng};

use crate::options::{Common, Failure};
use crate::report::Record;

/// Options of `object-requests`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// What to send.
    #[arg(value_enum)]
    kind: Kind,
    /// Prefix of the objects, as s3://BUCKET/PREFIX. `put` writes them, `delete` removes them.
    url: String,
    /// Number of objects.
    #[arg(long, default_value_t = 256)]
    objects: u64,
    /// Bytes of an object.
    #[arg(long, default_value_t = 8 << 20)]
    object_bytes: u64,
    /// Requests at a time, instead of those of a pool.
    #[arg(long)]
    connections: Option<usize>,
}

/// A kind of request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Kind {
    Put,
    Get,
    Delete,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Self::Put => "put",
            Self::Get => "get",
            Self::Delete => "delete",
        }
    }
}

/// Sends all requests once.
pub(crate) fn run(common: &Common, args: &Args) -> Result<Vec<Record>, Failure> {
    let options = Options::default();
    let own = if args.kind == Kind::Get { options.gets } else { options.puts };
    let connections = args.connections.unwrap_or(own).max(1);
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let store = connect(&args.url)?;
    let began = Instant::now();
    runtime.block_on(send_all(&store, args, connections, common.seed))?;
    let elapsed = began.elapsed().as_secs_f64();
    let bytes = args.objects * args.object_bytes;
    Ok(vec![
        Record::new("object-requests", args.kind.name(), connections)
            .param("bytes", bytes)
            .figure("bytes_per_s", bytes as f64 / elapsed)
            .figure("requests_per_s", args.objects as f64 / elapsed),
    ])
}

/// Sends the requests, each of which is for an object of its own.
async fn send_all(
    store: &Arc<dyn ObjectStore>,
    args: &Args,
    connections: usize,
    seed: u64,
) -> Result<(), Failure> {
    let next = Arc::new(AtomicU64::new(0));
    // A store may compress, so that zeros would be faster.
    let mut content = vec![0; args.object_bytes as usize];
    rand::rngs::Xoshiro256PlusPlus::seed_from_u64(seed).fill_bytes(&mut content);
    let content = Body::from(content);
    let mut senders = tokio::task::JoinSet::new();
    for _ in 0..connections {
        let (store, next, content) = (Arc::clone(store), Arc::clone(&next), content.clone());
        let (kind, count, bytes) = (args.kind, args.objects, args.object_bytes);
        senders.spawn(async move {
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= count {
                    return Ok::<(), StoreError>(());
                }
                let key = format!("part-{number}");
                match kind {
                    Kind::Put => {
                        let _ = store.put(&key, content.clone(), Condition::Always).await?;
                    }
                    Kind::Get => {
                        let found = store.get_range(&key, 0..bytes).await?;
                        assert_eq!(found.len() as u64, bytes, "the object {key} is short");
                    }
                    Kind::Delete => store.delete(&key).await?,
                }
            }
        });
    }
    while let Some(ended) = senders.join_next().await {
        ended??;
    }
    Ok(())
}
