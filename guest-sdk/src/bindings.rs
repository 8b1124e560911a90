//! What wit-bindgen makes of `wit/fold.wit`; used by [`crate::export_fold!`] only.

#![expect(clippy::too_many_arguments, reason = "generated")]

wit_bindgen::generate!({
    path: "wit",
    world: "fold",
    pub_export_macro: true,
    export_macro_name: "export_world",
    default_bindings_module: "foldmq_guest::bindings",
});

pub use foldmq::fold::types;
