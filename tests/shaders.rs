//! Every shader is valid WGSL, in every variant that is compiled. Needs no device.
#![cfg(feature = "gpu")]

use wgpu::naga;

#[test]
fn every_shader_is_valid() {
    for (name, text) in ferret::backend::gpu::sources() {
        let module =
            naga::front::wgsl::parse_str(&text).unwrap_or_else(|e| panic!("{name}: {}", e.emit_to_string(&text)));
        // No optional capability: what browsers have by default.
        let mut validator =
            naga::valid::Validator::new(naga::valid::ValidationFlags::all(), naga::valid::Capabilities::empty());
        validator.validate(&module).unwrap_or_else(|e| panic!("{name}: {}", e.emit_to_string(&text)));
    }
}

#[test]
fn every_file_is_compiled_and_names_what_it_mirrors() {
    let compiled = ferret::backend::gpu::sources();
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/shaders");
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let (stem, text) =
            (path.file_stem().unwrap().to_str().unwrap().to_owned(), std::fs::read_to_string(&path).unwrap());
        assert!(text.contains("Mirrors "), "{stem}.wgsl names the Rust function it mirrors");
        assert!(compiled.iter().any(|(_, compiled)| compiled.contains(&text)), "{stem}.wgsl is used by a kernel");
    }
}
