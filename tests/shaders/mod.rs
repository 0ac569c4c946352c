//! Every shader is valid WGSL, in every variant that is compiled. Needs no device.

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

/// Name, type and place of every member of a shader's `Params`, against the struct that is copied into it.
#[test]
fn every_struct_of_parameters_is_the_shaders_own() {
    let sources = ferret::backend::gpu::sources();
    let mut seen = std::collections::BTreeSet::new();
    for (file, fields) in ferret::backend::gpu::parameters() {
        let (name, text) = sources
            .iter()
            .find(|(name, _)| name.split(' ').next() == Some(file))
            .unwrap_or_else(|| panic!("{file}.wgsl is no shader"));
        let module = naga::front::wgsl::parse_str(text).unwrap();
        let (_, ty) = module.types.iter().find(|(_, ty)| ty.name.as_deref() == Some("Params")).expect(name);
        let naga::TypeInner::Struct { members, .. } = &ty.inner else { panic!("{name}: Params is no struct") };
        let found: Vec<(String, &str, u32)> = members
            .iter()
            .map(|m| {
                let kind = match module.types[m.ty].inner {
                    naga::TypeInner::Scalar(naga::Scalar::U32) => "u32",
                    naga::TypeInner::Scalar(naga::Scalar::F32) => "f32",
                    naga::TypeInner::Array { stride: 16, .. } => "Stream",
                    ref other => panic!("{name}: {:?} is {other:?}", m.name),
                };
                (m.name.clone().unwrap(), kind, m.offset)
            })
            .collect();
        let mut offset = 0;
        let want: Vec<(String, &str, u32)> = fields
            .iter()
            .map(|&(field, ty)| {
                let at = offset;
                offset += if ty == "Stream" { 48 } else { 4 };
                (field.to_owned(), ty, at)
            })
            .collect();
        assert_eq!(found, want, "{name}");
        seen.insert(file);
    }
    // Every shader that has parameters is among them.
    for (name, text) in &sources {
        let stem = name.split(' ').next().unwrap();
        assert!(!text.contains("struct Params") || seen.contains(stem), "{stem}.wgsl has no struct of parameters");
    }
}
