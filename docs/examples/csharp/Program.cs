// Creates a Stack, which deploys NGINX from a git repository, and the Secret that it needs.
using System.Collections.Generic;
using Pulumi;
using Pulumi.Kubernetes.ApiExtensions;
using Pulumi.Kubernetes.Core.V1;
using Pulumi.Kubernetes.Types.Inputs.Core.V1;
using Pulumi.Kubernetes.Types.Inputs.Meta.V1;

return await Deployment.RunAsync(() =>
{
    var config = new Config();

    var accessToken = new Secret("pulumi-api", new SecretArgs
    {
        Metadata = new ObjectMetaArgs { Name = "pulumi-api", Namespace = "default" },
        StringData = { ["accessToken"] = config.RequireSecret("pulumiAccessToken") },
    });

    var nginx = new Pulumi.Kubernetes.ApiExtensions.CustomResource("nginx", new StackArgs
    {
        Metadata = new ObjectMetaArgs { Name = "nginx", Namespace = "default" },
        Spec = new StackSpecArgs
        {
            Stack = "acme/k8s-nginx/dev",
            ServiceAccountName = "nginx",
            ProjectRepo = "https://github.com/pulumi/examples",
            RepoDir = "kubernetes-ts-nginx",
            Commit = "e2e5eb426dbf5b57c50bba0f8eb54fe982ceddb1",
            DestroyOnFinalize = true,
            EnvRefs =
            {
                ["PULUMI_ACCESS_TOKEN"] = new ResourceRefArgs
                {
                    Type = "Secret",
                    Secret = new SecretSelectorArgs
                    {
                        Name = accessToken.Metadata.Apply(metadata => metadata.Name),
                        Key = "accessToken",
                    },
                },
            },
        },
    });

    return new Dictionary<string, object?> { ["stack"] = nginx.Metadata.Apply(metadata => metadata.Name) };
});

class StackArgs : CustomResourceArgs
{
    [Input("spec")]
    public Input<StackSpecArgs>? Spec { get; set; }

    public StackArgs() : base("pulumi.com/v1", "Stack")
    {
    }
}

class StackSpecArgs : ResourceArgs
{
    [Input("stack")]
    public Input<string>? Stack { get; set; }

    [Input("serviceAccountName")]
    public Input<string>? ServiceAccountName { get; set; }

    [Input("projectRepo")]
    public Input<string>? ProjectRepo { get; set; }

    [Input("repoDir")]
    public Input<string>? RepoDir { get; set; }

    [Input("commit")]
    public Input<string>? Commit { get; set; }

    [Input("destroyOnFinalize")]
    public Input<bool>? DestroyOnFinalize { get; set; }

    [Input("envRefs")]
    private InputMap<ResourceRefArgs>? _envRefs;
    public InputMap<ResourceRefArgs> EnvRefs
    {
        get => _envRefs ??= new InputMap<ResourceRefArgs>();
        set => _envRefs = value;
    }
}

class ResourceRefArgs : ResourceArgs
{
    [Input("type")]
    public Input<string>? Type { get; set; }

    [Input("secret")]
    public Input<SecretSelectorArgs>? Secret { get; set; }
}

class SecretSelectorArgs : ResourceArgs
{
    [Input("name")]
    public Input<string>? Name { get; set; }

    [Input("key")]
    public Input<string>? Key { get; set; }
}
