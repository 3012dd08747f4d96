/** The store, of the host. Whose plugin has this file in it imports the interface, and so asks for it. */
export * as state from "anabranch:plugin/state@1.0.0";
