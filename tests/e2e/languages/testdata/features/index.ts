import * as pulumi from "@pulumi/pulumi";
import { createHash } from "crypto";

const config = new pulumi.Config();

// A resource that the program implements itself.
const digests: pulumi.dynamic.ResourceProvider = {
    create: async ({ text }: { text: string }) => {
        const { createHash } = await import("crypto");
        return { id: "digest", outs: { text, digest: createHash("sha256").update(text).digest("hex") } };
    },
    diff: async (_id, olds, news) => ({ changes: olds.text !== news.text, replaces: ["text"], deleteBeforeReplace: true }),
};

class Digest extends pulumi.dynamic.Resource {
    readonly digest!: pulumi.Output<string>;
    constructor(name: string, args: { text: pulumi.Input<string> }, options?: pulumi.CustomResourceOptions) {
        super(digests, name, { digest: undefined, ...args }, options);
    }
}

// A resource that consists of others.
class Pair extends pulumi.ComponentResource {
    readonly both: pulumi.Output<string>;
    constructor(name: string, texts: [pulumi.Input<string>, pulumi.Input<string>]) {
        super("features:index:Pair", name);
        const [first, second] = texts.map((text, i) => new Digest(`${name}-${i}`, { text }, { parent: this }));
        this.both = pulumi.interpolate`${first.digest} ${second.digest}`;
        this.registerOutputs({ both: this.both });
    }
}

const password = config.requireSecret("password");
const pair = new Pair("pair", [config.require("text"), password]);

export const both = pair.both;
export const echo = pulumi.interpolate`password: ${password}`;
export const local = createHash("sha256").update(config.require("text")).digest("hex");
export const settings = config.requireObject("settings");
