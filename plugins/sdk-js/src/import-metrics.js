/** Numbers, of the host. Whose plugin has this file in it imports the interface, and so asks for it. */
export * as metrics from "anabranch:plugin/metrics@1.0.0";
