//! What a device does when something goes wrong.

use super::Gpu;
use crate::backend::{Compute, Memory};
use crate::error::Error;

fn gpu() -> Option<Gpu> {
    match Gpu::new(None) {
        Ok(gpu) => Some(gpu),
        Err(e) => {
            assert!(std::env::var("FERRET_REQUIRE_GPU").as_deref() != Ok("1"), "FERRET_REQUIRE_GPU=1 is set: {e}");
            println!("skipped: {e}");
            None
        }
    }
}

/// What the device says, which must name the adapter.
fn complaint<T>(gpu: &Gpu, result: crate::Result<T>) -> String {
    match result {
        Err(Error::Device(what)) => {
            assert!(what.starts_with(&gpu.info().name), "{what}");
            what
        }
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("no error"),
    }
}

#[test]
fn a_matrix_over_the_limit_is_refused_by_name() {
    let Some(gpu) = gpu() else { return };
    let columns = 1 << 20;
    let rows = (gpu.info().max_buffer / 4) as usize / columns + 1;
    let x = gpu.zeros(rows, columns);
    // Work goes on without panicking, and means nothing.
    let y = gpu.activation(crate::ops::Activation::GeluTanh, &gpu.rows(&x, 0..1));
    let what = complaint(&gpu, gpu.download(&y));
    assert!(what.contains("max_buffer_size") && what.contains("smaller batch"), "{what}");
    assert_eq!(complaint(&gpu, gpu.finish()), what, "the first fault is the one that is told");
    assert_eq!(complaint(&gpu, gpu.upload(1, 1, vec![0.0])), what);
}

#[test]
fn a_row_over_the_binding_limit_is_refused_by_name() {
    let Some(_) = gpu() else { return };
    let gpu = Gpu::with_binding_limit(None, 1 << 10).unwrap();
    let x = gpu.zeros(2, 300);
    gpu.activation(crate::ops::Activation::GeluTanh, &x);
    let what = complaint(&gpu, gpu.finish());
    assert!(what.contains("max_storage_buffer_binding_size"), "{what}");
}

#[test]
fn a_lost_device_is_told() {
    let Some(gpu) = gpu() else { return };
    let x = gpu.upload(1, 3, vec![1.0, 2.0, 3.0]).unwrap();
    gpu.context.device.destroy();
    let y = gpu.activation(crate::ops::Activation::GeluTanh, &x);
    let what = complaint(&gpu, gpu.download(&y));
    assert!(what.contains("lost") || what.contains("refused"), "{what}");
}

#[test]
fn an_unknown_adapter_is_refused_with_the_names_of_the_known() {
    let Some(gpu) = gpu() else { return };
    let Err(Error::Device(what)) = Gpu::new(Some("no such adapter")) else { panic!("no error") };
    assert!(what.contains("no such adapter") && what.contains(&gpu.info().name), "{what}");
    assert_eq!(Gpu::new(Some(&gpu.info().name.to_uppercase())).unwrap().info().name, gpu.info().name);
    assert!(Gpu::new(Some("0")).is_ok());
}
