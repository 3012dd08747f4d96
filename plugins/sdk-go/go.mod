module anabranch-sdk

go 1.24
