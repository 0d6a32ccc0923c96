// Creates a Stack, which deploys NGINX from a git repository, and the Secret that it needs.
package main

import (
	"github.com/pulumi/pulumi-kubernetes/sdk/v4/go/kubernetes"
	"github.com/pulumi/pulumi-kubernetes/sdk/v4/go/kubernetes/apiextensions"
	corev1 "github.com/pulumi/pulumi-kubernetes/sdk/v4/go/kubernetes/core/v1"
	metav1 "github.com/pulumi/pulumi-kubernetes/sdk/v4/go/kubernetes/meta/v1"
	"github.com/pulumi/pulumi/sdk/v3/go/pulumi"
	"github.com/pulumi/pulumi/sdk/v3/go/pulumi/config"
)

func main() {
	pulumi.Run(program)
}

func program(ctx *pulumi.Context) error {
	accessToken, err := corev1.NewSecret(ctx, "pulumi-api", &corev1.SecretArgs{
		Metadata:   &metav1.ObjectMetaArgs{Name: pulumi.String("pulumi-api"), Namespace: pulumi.String("default")},
		StringData: pulumi.StringMap{"accessToken": config.RequireSecret(ctx, "pulumiAccessToken")},
	})
	if err != nil {
		return err
	}
	stack, err := apiextensions.NewCustomResource(ctx, "nginx", &apiextensions.CustomResourceArgs{
		ApiVersion: pulumi.String("pulumi.com/v1"),
		Kind:       pulumi.String("Stack"),
		Metadata:   &metav1.ObjectMetaArgs{Name: pulumi.String("nginx"), Namespace: pulumi.String("default")},
		OtherFields: kubernetes.UntypedArgs{
			"spec": pulumi.Map{
				"stack":              pulumi.String("acme/k8s-nginx/dev"),
				"serviceAccountName": pulumi.String("nginx"),
				"projectRepo":        pulumi.String("https://github.com/pulumi/examples"),
				"repoDir":            pulumi.String("kubernetes-ts-nginx"),
				"commit":             pulumi.String("e2e5eb426dbf5b57c50bba0f8eb54fe982ceddb1"),
				"destroyOnFinalize":  pulumi.Bool(true),
				"envRefs": pulumi.Map{
					"PULUMI_ACCESS_TOKEN": pulumi.Map{
						"type": pulumi.String("Secret"),
						"secret": pulumi.Map{
							"name": accessToken.Metadata.Name().Elem(),
							"key":  pulumi.String("accessToken"),
						},
					},
				},
			},
		},
	})
	if err != nil {
		return err
	}
	ctx.Export("stack", stack.Metadata.Name())
	return nil
}
