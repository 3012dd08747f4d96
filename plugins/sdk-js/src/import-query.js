/** Questions, of the host. Whose plugin has this file in it imports the interface, and so asks for it. */
export { query } from "anabranch:plugin/query@1.0.0";
