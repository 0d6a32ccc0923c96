package podspec

import (
	"errors"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
)

const loginAs = `pulumiCloud: {oidc: {organization: acme, team: network}}`

func TestOnlyPulumiHasATokenForPulumiCloud(t *testing.T) {
	g := NewWithT(t)
	workspace := parse(g, `{serviceAccountName: deployer, `+loginAs+`, podTemplate: {spec: {
		initContainers: [{name: i, image: x}], containers: [{name: s, image: x}, {name: pulumi, volumeMounts: [{name: share, mountPath: /data}]}]}}}`)
	acceptedByAPIServer(g, build(g, workspace))
	pod := build(g, workspace).StatefulSet.Spec.Template.Spec
	g.Expect(pod.ServiceAccountName).To(Equal("deployer"))
	g.Expect(pod.Volumes).To(ContainElement(corev1.Volume{Name: "pulumi-cloud-token", Projected: &corev1.ProjectedVolumeSource{
		DefaultMode: ptr.To[int32](0o440),
		Sources: []corev1.VolumeProjection{{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{
			Audience: "urn:pulumi:org:acme", ExpirationSeconds: ptr.To[int64](3600), Path: "token",
		}}},
	}}))
	for _, container := range append(pod.InitContainers, pod.Containers...) {
		mounted := HaveField("MountPath", "/var/run/secrets/pulumi-cloud")
		if container.Name == "pulumi" {
			g.Expect(container.VolumeMounts).To(ContainElement(And(mounted, HaveField("ReadOnly", true), HaveField("Name", "pulumi-cloud-token"))))
		} else {
			g.Expect(container.VolumeMounts).NotTo(ContainElement(mounted), container.Name)
		}
	}
	g.Expect(podOfSpec(t, `{}`).Volumes).NotTo(ContainElement(HaveField("Name", "pulumi-cloud-token")))
	readable := podOfSpec(t, `{securityProfile: baseline, `+loginAs+`}`).Volumes[2]
	g.Expect(readable.Projected.DefaultMode).To(HaveValue(BeEquivalentTo(0o444)), "the user of the image may be anyone")
}

func TestOnlyAnotherAudienceOfTheTokenReplacesThePod(t *testing.T) {
	g := NewWithT(t)
	plain, base := build(g, parse(g, `{}`)), build(g, parse(g, loginAs))
	g.Expect(base.RevisionHash).NotTo(Equal(plain.RevisionHash))
	g.Expect(base.AgentRevision).To(Equal(plain.AgentRevision))
	g.Expect(build(g, parse(g, `pulumiCloud: {oidc: {organization: other}}`)).RevisionHash).NotTo(Equal(base.RevisionHash))
	g.Expect(build(g, parse(g, `pulumiCloud: {oidc: {organization: acme, user: alice, expiration: 3h}}`)).StatefulSet).To(Equal(base.StatefulSet))
}

func TestPodThatCannotLogInToPulumiCloudIsRefused(t *testing.T) {
	for _, tt := range []struct{ name, spec, field string }{
		{"its volume is taken", loginAs + `, podTemplate: {spec: {volumes: [{name: pulumi-cloud-token, emptyDir: {}}]}}`, `spec.podTemplate.spec.volumes[pulumi-cloud-token]`},
		{"its token is hidden", loginAs + `, podTemplate: {spec: {containers: [{name: pulumi, volumeMounts: [{name: a, mountPath: /var/run/secrets/pulumi-cloud}]}]}}`,
			`spec.podTemplate.spec.containers[pulumi].volumeMounts[/var/run/secrets/pulumi-cloud]`},
		{"another backend", loginAs + `, env: [{name: PULUMI_BACKEND_URL, value: "s3://state"}]`, `spec.pulumiCloud`},
		{"an access token", loginAs + `, env: [{name: PULUMI_ACCESS_TOKEN, value: canary}]`, `spec.pulumiCloud`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			g := NewWithT(t)
			_, err := Build(parse(g, `{`+tt.spec+`}`), settings())
			var invalid *InvalidError
			g.Expect(errors.As(err, &invalid)).To(BeTrue(), "%v", err)
			g.Expect(invalid.Problems).To(HaveLen(1))
			g.Expect(invalid.Problems[0].Field).To(Equal(tt.field))
			g.Expect(err.Error()).NotTo(ContainSubstring("canary"))
		})
	}
}
