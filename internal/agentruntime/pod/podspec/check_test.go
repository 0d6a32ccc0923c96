package podspec

import (
	"errors"
	"testing"

	. "github.com/onsi/gomega"
)

func TestPodTemplatesThatCanNeverWorkNameTheirField(t *testing.T) {
	for _, tt := range []struct{ name, spec, field string }{
		{"unknown profile", `securityProfile: privileged`, `spec.securityProfile`},
		{"another file of variables", `env: [{name: PULUMI_ENV, value: /tmp/env}]`, `spec.env[PULUMI_ENV]`},
		{"another file of variables for a container", `podTemplate: {spec: {initContainers: [{name: i, image: x, env: [{name: PULUMI_ENV, value: /tmp/env}]}]}}`,
			`spec.podTemplate.spec.initContainers[i].env[PULUMI_ENV]`},
		{"a pod that ends", `podTemplate: {spec: {restartPolicy: Never}}`, `spec.podTemplate.spec.restartPolicy`},
		{"a pod with a deadline", `podTemplate: {spec: {activeDeadlineSeconds: 60}}`, `spec.podTemplate.spec.activeDeadlineSeconds`},
		{"ephemeral containers", `podTemplate: {spec: {ephemeralContainers: [{name: x, image: x}]}}`, `spec.podTemplate.spec.ephemeralContainers`},
		{"Windows", `podTemplate: {spec: {os: {name: windows}}}`, `spec.podTemplate.spec.os`},
		{"negative grace", `podTemplate: {spec: {terminationGracePeriodSeconds: -1}}`, `spec.podTemplate.spec.terminationGracePeriodSeconds`},
		{"the volume of the agent's identity", `podTemplate: {spec: {volumes: [{name: rpc, emptyDir: {}}]}}`, `spec.podTemplate.spec.volumes[rpc]`},
		{"share from a ConfigMap", `podTemplate: {spec: {volumes: [{name: share, configMap: {name: x}}]}}`, `spec.podTemplate.spec.volumes[share]`},
		{"share on a read-only claim", `podTemplate: {spec: {volumes: [{name: share, persistentVolumeClaim: {claimName: x, readOnly: true}}]}}`,
			`spec.podTemplate.spec.volumes[share]`},
		{"another command", `podTemplate: {spec: {containers: [{name: pulumi, command: [sh]}]}}`, `spec.podTemplate.spec.containers[pulumi].command`},
		{"other arguments", `podTemplate: {spec: {containers: [{name: pulumi, args: [-v]}]}}`, `spec.podTemplate.spec.containers[pulumi].args`},
		{"another readiness", `podTemplate: {spec: {containers: [{name: pulumi, readinessProbe: {exec: {command: ["true"]}}}]}}`,
			`spec.podTemplate.spec.containers[pulumi].readinessProbe`},
		{"no restart of pulumi", `podTemplate: {spec: {containers: [{name: pulumi, restartPolicy: Never}]}}`, `spec.podTemplate.spec.containers[pulumi].restartPolicy`},
		{"another volume for /share", `podTemplate: {spec: {containers: [{name: pulumi, volumeMounts: [{name: data, mountPath: /share/}]}]}}`,
			`spec.podTemplate.spec.containers[pulumi].volumeMounts[/share/]`},
		{"part of share", `podTemplate: {spec: {containers: [{name: pulumi, volumeMounts: [{name: share, subPath: x, mountPath: /share}]}]}}`,
			`spec.podTemplate.spec.containers[pulumi].volumeMounts[/share]`},
		{"read-only share", `podTemplate: {spec: {containers: [{name: pulumi, volumeMounts: [{name: share, readOnly: true, mountPath: /share}]}]}}`,
			`spec.podTemplate.spec.containers[pulumi].volumeMounts[/share]`},
		{"over the agent", `podTemplate: {spec: {containers: [{name: pulumi, volumeMounts: [{name: data, mountPath: /share/agent}]}]}}`,
			`spec.podTemplate.spec.containers[pulumi].volumeMounts[/share/agent]`},
		{"over the source", `podTemplate: {spec: {containers: [{name: pulumi, volumeMounts: [{name: data, mountPath: /share/source/}]}]}}`,
			`spec.podTemplate.spec.containers[pulumi].volumeMounts[/share/source/]`},
		{"over the identity", `podTemplate: {spec: {containers: [{name: pulumi, volumeMounts: [{name: data, mountPath: /var/run/secrets/stack-controller}]}]}}`,
			`spec.podTemplate.spec.containers[pulumi].volumeMounts[/var/run/secrets/stack-controller]`},
		{"over a part of the identity", `podTemplate: {spec: {containers: [{name: pulumi, volumeMounts: [{name: data, mountPath: /var/run/secrets/stack-controller/x}]}]}}`,
			`spec.podTemplate.spec.containers[pulumi].volumeMounts[/var/run/secrets/stack-controller/x]`},
		{"another agent", `podTemplate: {spec: {initContainers: [{name: bootstrap, image: x}]}}`, `spec.podTemplate.spec.initContainers[bootstrap].image`},
		{"another command for bootstrap", `podTemplate: {spec: {initContainers: [{name: bootstrap, command: [x]}]}}`, `spec.podTemplate.spec.initContainers[bootstrap].command`},
		{"bootstrap for ever", `podTemplate: {spec: {initContainers: [{name: bootstrap, restartPolicy: Always}]}}`, `spec.podTemplate.spec.initContainers[bootstrap].restartPolicy`},
		{"bootstrap into another volume", `podTemplate: {spec: {initContainers: [{name: bootstrap, volumeMounts: [{name: data, mountPath: /share}]}]}}`,
			`spec.podTemplate.spec.initContainers[bootstrap].volumeMounts[/share]`},
		{"no generated container of that name", `podTemplate: {spec: {containers: [{name: Pulumi, env: [{name: A, value: b}]}]}}`, `spec.podTemplate.spec.containers[Pulumi].image`},
		{"no generated init container of that name", `podTemplate: {spec: {initContainers: [{name: pulumi}]}}`, `spec.podTemplate.spec.initContainers[pulumi].image`},
		{"root", `podTemplate: {spec: {securityContext: {runAsUser: 0}}}`, `spec.podTemplate.spec.securityContext.runAsUser`},
		{"root in an init container", `podTemplate: {spec: {initContainers: [{name: chown, image: x, securityContext: {runAsUser: 0}}]}}`,
			`spec.podTemplate.spec.initContainers[chown].securityContext.runAsUser`},
		{"root in a container that says no", `{securityProfile: baseline, podTemplate: {spec: {containers: [{name: pulumi, securityContext: {runAsUser: 0, runAsNonRoot: true}}]}}}`,
			`spec.podTemplate.spec.containers[pulumi].securityContext.runAsUser`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			g := NewWithT(t)
			_, err := Build(parse(g, tt.spec), settings())
			var invalid *InvalidError
			g.Expect(errors.As(err, &invalid)).To(BeTrue(), "%v", err)
			g.Expect(invalid.Problems).To(HaveLen(1))
			g.Expect(invalid.Problems[0].Field).To(Equal(tt.field))
			g.Expect(err.Error()).To(HavePrefix(tt.field + ": "))
		})
	}
}

func TestAllProblemsAreNamedAtOnceAndNoValues(t *testing.T) {
	g := NewWithT(t)
	_, err := Build(parse(g, `{
		securityProfile: baseline,
		env: [{name: PULUMI_ENV, value: canary-5f1e}],
		podTemplate: {spec: {restartPolicy: Never, containers: [{name: pulumi, command: [canary-5f1e], args: [canary-5f1e]}]}}}`), settings())
	var invalid *InvalidError
	g.Expect(errors.As(err, &invalid)).To(BeTrue())
	g.Expect(invalid.Problems).To(HaveLen(4))
	g.Expect(err.Error()).NotTo(ContainSubstring("canary-5f1e"))
}

// usersToDecide returns specs that are unusual but work.
func usersToDecide() []struct{ name, spec string } {
	return []struct{ name, spec string }{
		{"no pod spec", `podTemplate: {metadata: {labels: {a: b}}}`},
		{"host namespaces", `podTemplate: {spec: {hostNetwork: true, hostPID: true, dnsPolicy: ClusterFirstWithHostNet}}`},
		{"one process namespace", `podTemplate: {spec: {shareProcessNamespace: true}}`},
		{"the only restart policy there is", `podTemplate: {spec: {restartPolicy: Always}}`},
		{"no grace", `podTemplate: {spec: {terminationGracePeriodSeconds: 0}}`},
		{"share on a claim", `podTemplate: {spec: {volumes: [{name: share, persistentVolumeClaim: {claimName: x}}]}}`},
		{"share in memory", `podTemplate: {spec: {volumes: [{name: share, emptyDir: {medium: Memory}}]}}`},
		{"mounts beneath share", `podTemplate: {spec: {volumes: [{name: a, emptyDir: {}}],
			containers: [{name: pulumi, volumeMounts: [{name: a, mountPath: /share/workspace}, {name: a, mountPath: /share/agents}]}]}}`},
		{"a program of its own where sources are", `{local: {dir: /share/source/app}, podTemplate: {spec: {volumes: [{name: a, emptyDir: {}}],
			containers: [{name: pulumi, volumeMounts: [{name: a, mountPath: /share/source}]}]}}}`},
		{"share where it is", `podTemplate: {spec: {containers: [{name: pulumi, volumeMounts: [{name: share, mountPath: /share}]}]}}`},
		{"part of share elsewhere", `podTemplate: {spec: {containers: [{name: pulumi, volumeMounts: [{name: share, subPath: x, mountPath: /data}]}]}}`},
		{"the file of variables where it is", `env: [{name: PULUMI_ENV, value: /share/.env}]`},
		{"other probes and hooks", `podTemplate: {spec: {containers: [{name: pulumi, livenessProbe: {tcpSocket: {port: 50051}}, readinessProbe: {failureThreshold: 9},
			lifecycle: {preStop: {exec: {command: ["true"]}}}}]}}`},
		{"another user", `podTemplate: {spec: {securityContext: {runAsUser: 4711, fsGroup: 4711}}}`},
		{"root where root may be", `podTemplate: {spec: {initContainers: [{name: chown, image: x, securityContext: {runAsUser: 0, runAsNonRoot: false}}]}}`},
		{"root under baseline", `{securityProfile: baseline, podTemplate: {spec: {securityContext: {runAsUser: 0}}}}`},
		{"resources for bootstrap", `podTemplate: {spec: {initContainers: [{name: bootstrap, resources: {limits: {cpu: "1"}}}]}}`},
		{"the Pulumi Kubernetes Operator's fetch", `podTemplate: {spec: {initContainers: [{name: fetch, resources: {limits: {cpu: "1"}}}]}}`},
		{"the Pulumi Kubernetes Operator's fetch from a mirror", `podTemplate: {spec: {initContainers: [{name: fetch, image: "mirror.example.com/pulumi-kubernetes-operator:v2.9.0"}]}}`},
	}
}

func TestPodTemplatesThatAreTheUsersToDecide(t *testing.T) {
	for _, tt := range usersToDecide() {
		t.Run(tt.name, func(t *testing.T) {
			g := NewWithT(t)
			objects := build(g, parse(g, tt.spec))
			acceptedByAPIServer(g, objects)
		})
	}
}
