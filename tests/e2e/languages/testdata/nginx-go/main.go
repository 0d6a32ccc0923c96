package main

import (
	appsv1 "github.com/pulumi/pulumi-kubernetes/sdk/v4/go/kubernetes/apps/v1"
	corev1 "github.com/pulumi/pulumi-kubernetes/sdk/v4/go/kubernetes/core/v1"
	metav1 "github.com/pulumi/pulumi-kubernetes/sdk/v4/go/kubernetes/meta/v1"
	"github.com/pulumi/pulumi/sdk/v3/go/pulumi"
	"github.com/pulumi/pulumi/sdk/v3/go/pulumi/config"
)

func main() {
	pulumi.Run(func(ctx *pulumi.Context) error {
		labels := pulumi.StringMap{"app": pulumi.String("nginx")}
		deployment, err := appsv1.NewDeployment(ctx, "nginx", &appsv1.DeploymentArgs{Spec: &appsv1.DeploymentSpecArgs{
			Selector: &metav1.LabelSelectorArgs{MatchLabels: labels},
			Replicas: pulumi.Int(1),
			Template: &corev1.PodTemplateSpecArgs{
				Metadata: &metav1.ObjectMetaArgs{Labels: labels},
				Spec: &corev1.PodSpecArgs{
					SecurityContext: &corev1.PodSecurityContextArgs{
						RunAsNonRoot: pulumi.Bool(true), RunAsUser: pulumi.Int(1000),
						SeccompProfile: &corev1.SeccompProfileArgs{Type: pulumi.String("RuntimeDefault")},
					},
					TerminationGracePeriodSeconds: pulumi.Int(1),
					Containers: corev1.ContainerArray{&corev1.ContainerArgs{
						Name: pulumi.String("nginx"), Image: pulumi.String(config.Require(ctx, "image")),
						ImagePullPolicy: pulumi.String("IfNotPresent"),
						Command:         pulumi.ToStringArray([]string{"sleep", "3600"}),
						SecurityContext: &corev1.SecurityContextArgs{
							AllowPrivilegeEscalation: pulumi.Bool(false),
							Capabilities:             &corev1.CapabilitiesArgs{Drop: pulumi.ToStringArray([]string{"ALL"})},
						},
					}},
				},
			},
		}})
		if err != nil {
			return err
		}
		ctx.Export("name", deployment.Metadata.Name())
		return nil
	})
}
