use std::time::Duration;

use forebay::KeyedCache;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let pages = KeyedCache::<String, Vec<u8>>::builder()
        .capacity(64 << 20)
        .weigher(|name, page| (name.len() + page.len()) as u64)
        .time_to_live(Duration::from_secs(60))
        .build()?;

    pages.insert("index".to_owned(), b"<html>".to_vec())?;
    assert!(pages.get("index").is_some()); // takes no lock

    // One load per key, however many threads ask for it at once.
    let page = pages.get_or_load("about".to_owned(), || {
        Ok::<_, std::io::Error>(b"about".to_vec()) // render it here
    })?;
    assert_eq!(page.len(), 5);
    Ok(())
}
