module example.com/stacks

go 1.25.0

require (
	github.com/pulumi/pulumi-kubernetes/sdk/v4 v4.34.2
	github.com/pulumi/pulumi/sdk/v3 v3.259.0
)
