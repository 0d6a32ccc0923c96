// Stands in for @pulumi/pulumi.
export class Config {
    requireSecret() {
        return "[secret]";
    }
}
