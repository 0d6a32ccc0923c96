// Stands in for @pulumi/kubernetes: prints each object that is created, on a line of its own.
function print(object) {
    console.log(JSON.stringify(object));
}

class Secret {
    constructor(_name, args) {
        this.metadata = args.metadata;
        print({ apiVersion: "v1", kind: "Secret", ...args });
    }
}

class CustomResource {
    constructor(_name, args) {
        this.metadata = args.metadata;
        print(args);
    }
}

export const core = { v1: { Secret } };
export const apiextensions = { CustomResource };
