use forebay_base::arena::{Arena, ArenaConfig, HugePages};
use forebay_io::{Device, FileDevice, OpenOptions, Request};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let options = OpenOptions { create_bytes: Some(1 << 20), ..OpenOptions::default() };
    let device = FileDevice::open("medium", &options)?;
    println!("{} by {}", device.info().name, device.info().engine);

    let arena = Arena::new(ArenaConfig { limit_bytes: 1 << 20, huge_pages: HugePages::Auto })?;
    let mut block = arena.alloc(4096)?;
    block.fill(7);
    device.run(Request::write(8192, block)).result?;
    device.run(Request::flush()).result?; // only now is it durable

    let block = device.run(Request::read(8192, arena.alloc(4096)?)).into_buffer()?;
    assert_eq!(block[0], 7);
    Ok(())
}
