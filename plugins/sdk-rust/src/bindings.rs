//! Generated from `wit/v1`; used by [`export!`](crate::export), not by people.
#![allow(missing_docs, unreachable_pub, clippy::all, clippy::unwrap_used, clippy::expect_used, clippy::panic)]
#![allow(unsafe_op_in_unsafe_fn)]

// What guests ask for by using it; the linker drops the rest.
#[cfg(feature = "generate")]
pub mod capabilities {
    wit_bindgen::generate!({
        inline: "
            package anabranch:sdk;
            world capabilities {
                import anabranch:plugin/query@1.0.0;
                import anabranch:plugin/state@1.0.0;
                import anabranch:plugin/metrics@1.0.0;
            }
        ",
        path: "../../wit/v1",
        world: "anabranch:sdk/capabilities",
        with: { "anabranch:plugin/types@1.0.0": crate::bindings::anabranch::plugin::types },
        generate_all,
    });
}

#[cfg(not(feature = "generate"))]
#[rustfmt::skip]
#[path = "generated_capabilities.rs"]
pub mod capabilities;

#[cfg(all(feature = "generate", feature = "http"))]
pub mod outbound {
    wit_bindgen::generate!({
        inline: "
            package anabranch:sdk;
            world outbound {
                import wasi:http/outgoing-handler@0.2.0;
            }
        ",
        path: ["wit/io", "wit/clocks", "wit/http"],
        world: "anabranch:sdk/outbound",
        generate_all,
    });
}

#[cfg(all(not(feature = "generate"), feature = "http"))]
#[rustfmt::skip]
#[path = "generated_http.rs"]
pub mod outbound;

#[cfg(feature = "generate")]
wit_bindgen::generate!({
    path: "../../wit/v1",
    world: "transform-plugin",
    pub_export_macro: true,
    export_macro_name: "export_plugin",
});

#[cfg(not(feature = "generate"))]
#[rustfmt::skip]
#[path = "generated.rs"]
mod generated;
#[cfg(not(feature = "generate"))]
pub use generated::{anabranch, export_plugin, exports};

// What sinks export.
#[cfg(all(feature = "generate", feature = "sink"))]
pub mod sink {
    wit_bindgen::generate!({
        path: "../../wit/v1",
        world: "sink-plugin",
        pub_export_macro: true,
        export_macro_name: "export_sink_plugin",
        with: {
            "anabranch:plugin/types@1.0.0": crate::bindings::anabranch::plugin::types,
            "anabranch:plugin/log@1.0.0": crate::bindings::anabranch::plugin::log,
            "anabranch:plugin/config@1.0.0": crate::bindings::anabranch::plugin::config,
        },
    });
}
#[cfg(all(not(feature = "generate"), feature = "sink"))]
#[rustfmt::skip]
#[path = "generated_sink.rs"]
pub mod sink;

// What a sink may export on top.
#[cfg(all(feature = "generate", feature = "sink"))]
pub mod purge {
    wit_bindgen::generate!({
        inline: "
            package anabranch:sdk;
            world purging {
                export anabranch:plugin/purge@1.0.0;
            }
        ",
        path: "../../wit/v1",
        world: "anabranch:sdk/purging",
        pub_export_macro: true,
        export_macro_name: "export_purge",
        with: { "anabranch:plugin/types@1.0.0": crate::bindings::anabranch::plugin::types },
    });
}
#[cfg(all(not(feature = "generate"), feature = "sink"))]
#[rustfmt::skip]
#[path = "generated_purge.rs"]
pub mod purge;

#[cfg(all(feature = "generate", feature = "sink"))]
pub mod generations {
    wit_bindgen::generate!({
        inline: "
            package anabranch:sdk;
            world switching {
                export anabranch:plugin/generations@1.0.0;
            }
        ",
        path: "../../wit/v1",
        world: "anabranch:sdk/switching",
        pub_export_macro: true,
        export_macro_name: "export_generations",
        with: { "anabranch:plugin/types@1.0.0": crate::bindings::anabranch::plugin::types },
    });
}
#[cfg(all(not(feature = "generate"), feature = "sink"))]
#[rustfmt::skip]
#[path = "generated_generations.rs"]
pub mod generations;
